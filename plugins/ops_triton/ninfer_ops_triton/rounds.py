"""The ends of a captured decode round, and the middle of one that verifies drafts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

from ninfer_core.ops.contracts.rounds import LaneTables, RoundRing, RoundRows
from ninfer_core.ops.contracts.values import TokenCounts
from ninfer_core.ops.contracts.verifying import SettledRows, VerifiedRows, VerifyAnswer
from ninfer_core.ops.errors import OpError
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


def settle_drafts(
    tokens: Tensor,
    broken: Tensor,
    rows: VerifiedRows,
    answer: VerifyAnswer,
    drafts: int,
    block: bool,
) -> SettledRows:
    count, device = rows.starts.shape[0], tokens.device
    width, rest = divmod(tokens.shape[0], count)
    if rest or width < 1 or drafts < 1:
        raise OpError(
            f"{tokens.shape[0]} rows of {count} sequences and {drafts} drafts; a sequence has one "
            "row or more, and at least one draft is made"
        )
    places, wide = (1, drafts + 1) if block else (drafts, 1)
    made = SettledRows(
        torch.empty((count,), dtype=torch.int32, device=device),
        torch.empty((count,), dtype=torch.int64, device=device),
        torch.empty((places, count), dtype=torch.int32, device=device),
        torch.empty((places, count), dtype=torch.int32, device=device),
        torch.empty((places, 3, count * wide), dtype=torch.int32, device=device),
    )
    launch(
        rounds.settle, (1,), tokens, broken, rows.ids, rows.starts, rows.live, rows.deltas,
        rows.remaining, rows.most, answer.tokens, answer.broken, answer.accepted,
        made.tokens, made.last, made.starts, made.live, made.positions, count, width, drafts,
        ROWS=triton.next_power_of_2(count), COLUMNS=triton.next_power_of_2(max(width, drafts + 1)),
        BLOCK=block, warps=1, dependent=True,
    )  # fmt: skip
    return made


OPS: dict[str, Callable[..., Any]] = {
    "begin_round": begin_round,
    "publish_round": publish_round,
    "settle_drafts": settle_drafts,
}
