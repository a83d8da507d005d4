"""The ends of a captured decode round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
from torch import Tensor

from ninfer_core.ops.contracts.rounds import LaneTables, RoundRing, RoundRows
from ninfer_core.ops.contracts.values import TokenCounts
from ninfer_ops_triton.kernels import rounds
from ninfer_ops_triton.launch import launch

CHANGES = 64
"""Table changes taken at a time."""


def begin_round(ring: RoundRing, tables: LaneTables, rows: RoundRows) -> None:
    count = rows.ids.shape[0]
    launch(
        rounds.begin, (1,), ring.ingress, ring.egress, ring.counter,
        tables.tokens, tables.block_tables,
        rows.ids, rows.lanes, rows.table_rows, rows.starts, rows.live, rows.slots, rows.targets,
        rows.positions, rows.chosen,
        ring.ingress.shape[0], ring.ingress.shape[1], ring.egress.shape[1],
        tables.block_tables.shape[1], ring.lanes, ring.changes, count,
        ROWS=triton.next_power_of_2(count), CHANGES=CHANGES, warps=1, dependent=True,
    )  # fmt: skip


def publish_round(
    ring: RoundRing,
    tables: LaneTables,
    rows: RoundRows,
    counts: TokenCounts,
    tokens: Tensor,
    broken: Tensor,
) -> None:
    count = rows.ids.shape[0]
    launch(
        rounds.publish, (1,), ring.egress, ring.counter, tables.tokens, rows.lanes,
        counts.generated, tokens, broken,
        ring.egress.shape[0], ring.egress.shape[1], counts.generated.shape[1], count,
        ROWS=triton.next_power_of_2(count), warps=1, dependent=True,
    )  # fmt: skip


OPS: dict[str, Callable[..., Any]] = {
    "begin_round": begin_round,
    "publish_round": publish_round,
}
