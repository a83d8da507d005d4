"""What stands around a round that verifies drafts, one launch each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import TokenCounts
from ninfer_core.ops.contracts.verifying import (
    DRAFTS,
    FoldRows,
    Folds,
    GivenRows,
    ResolvedRows,
    SettledRows,
    VerifyAnswer,
)
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.integers import integers
from ninfer_ops_triton.kernels import verifying
from ninfer_ops_triton.launch import cdiv, launch, next_power_of_2

ELEMENTS = 1024
"""Of a hidden row that one program moves."""


def resolve_rows(given: GivenRows, kept: Tensor, tokens: Tensor) -> ResolvedRows:
    count, rows = given.lanes.shape[0], given.ids.shape[0]
    width = _width(rows, count)
    _check_kept(kept, width - 1)

    def made(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return integers(*shape, dtype=dtype, device=kept.device)

    own = ResolvedRows(
        ids=made(rows),
        starts=made(count),
        live=made(count),
        deltas=given.deltas,
        tables=given.lanes,
        remaining=made(count),
        most=given.most,
        places=given.places,
        slots=made(count, dtype=torch.int64),
        positions=made(3, rows),
        lanes=made(rows, dtype=torch.int64),
        chosen=made(rows),
    )
    launch(
        verifying.resolve, (1,), given.ids, given.starts, given.live, given.deltas, given.slots,
        given.lanes, given.remaining, given.behind, kept, tokens,
        own.ids, own.starts, own.live, own.remaining, own.slots, own.positions, own.lanes,
        own.chosen, count, width, kept.shape[1],
        ROWS=next_power_of_2(count), COLUMNS=next_power_of_2(width), warps=1, dependent=True,
    )  # fmt: skip
    return own


def settle_drafts(
    tokens: Tensor,
    broken: Tensor,
    rows: ResolvedRows,
    answer: VerifyAnswer,
    settled: SettledRows,
    kept: Tensor,
    block: bool,
    counts: TokenCounts | None = None,
) -> None:
    count = rows.starts.shape[0]
    width = _width(tokens.shape[0], count)
    drafts = _drafts(settled, count, block)
    _check_kept(kept, drafts)
    generated = answer.accepted if counts is None else counts.generated
    launch(
        verifying.settle, (1,), tokens, broken, rows.ids, rows.starts, rows.live, rows.deltas,
        rows.tables, rows.remaining, rows.most, rows.places,
        answer.tokens, answer.broken, answer.accepted,
        settled.tokens, settled.last, settled.starts, settled.live, settled.tables,
        settled.positions, kept, generated,
        count, width, drafts, kept.shape[1], 0 if counts is None else generated.shape[1],
        ROWS=next_power_of_2(count), COLUMNS=next_power_of_2(max(width, drafts + 1)),
        BLOCK=block, COUNTED=counts is not None, warps=1, dependent=True,
    )  # fmt: skip


def keep_drafts(
    drafts: Tensor, settled: SettledRows, kept: Tensor, answer: Tensor, block: bool
) -> None:
    count, made = drafts.shape
    most = _drafts(settled, count, block)
    _check_kept(kept, most)
    if not 1 <= made <= most or drafts.stride(1) != 1 or answer.shape != (count, most):
        raise OpError(
            f"drafts are {list(drafts.shape)} with strides {drafts.stride()}, the answer "
            f"{list(answer.shape)}; up to {most} drafts of a row lie side by side"
        )
    places = settled.live.shape[0]
    launch(
        verifying.keep, (1,), drafts, settled.live, settled.tables, kept, answer,
        count, made, most, drafts.stride(0), places, kept.shape[1],
        ROWS=next_power_of_2(count), COLUMNS=next_power_of_2(most), BLOCK=block,
        warps=1, dependent=True,
    )  # fmt: skip


def resolve_folds(
    rows: FoldRows, kept: Tensor, hidden: Tensor | None, pool: Tensor | None
) -> Folds:
    count, device = rows.lanes.shape[0], kept.device
    _check_kept(kept, 0)
    own = Folds(
        integers(count, dtype=torch.int64, device=device),
        integers(count, dtype=torch.int64, device=device),
        integers(count, dtype=torch.int32, device=device),
    )
    moved = hidden is not None and pool is not None
    source, target = (hidden, pool) if hidden is not None and pool is not None else (kept, kept)
    if moved and (source.shape[1:] != target.shape[1:] or source.dtype != target.dtype):
        raise OpError(
            f"hidden rows are {source.dtype}{list(source.shape)}, those of the slots "
            f"{target.dtype}{list(target.shape)}; they must be alike"
        )
    width = source.shape[1] if moved else 1
    launch(
        verifying.fold_rows, (count, cdiv(width, ELEMENTS)),
        rows.slots, rows.targets, rows.lanes, rows.counts, rows.last, kept, source, target,
        own.slots, own.targets, own.counts, kept.shape[1], width,
        HIDDEN=moved, BLOCK=ELEMENTS, dependent=True,
    )  # fmt: skip
    return own


def _width(rows: int, count: int) -> int:
    width, rest = divmod(rows, count)
    if rest or width < 1:
        raise OpError(f"{rows} rows of {count} sequences; a sequence has one row or more")
    return width


def _drafts(settled: SettledRows, count: int, block: bool) -> int:
    """K, from the shapes of where drafts begin."""
    places, (axes, also, columns) = settled.starts.shape[0], settled.positions.shape
    drafts = columns // count - 1 if block else places
    wanted = (3, places, count * (drafts + 1 if block else 1))
    if drafts < 1 or (block and places != 1) or (axes, also, columns) != wanted:
        raise OpError(
            f"settled rows have starts {list(settled.starts.shape)} and positions "
            f"{list(settled.positions.shape)}; {count} sequences have places for one draft or more"
        )
    return drafts


def _check_kept(kept: Tensor, drafts: int) -> None:
    if kept.dtype != torch.int32 or not kept.is_contiguous() or kept.shape[1] < DRAFTS + drafts:
        raise OpError(
            f"kept words are {kept.dtype}{list(kept.shape)}; they must be contiguous "
            f"torch.int32[L, {DRAFTS} + K], K at least {drafts}"
        )


OPS: Mapping[str, Callable[..., Any]] = {
    "resolve_rows": resolve_rows,
    "settle_drafts": settle_drafts,
    "keep_drafts": keep_drafts,
    "resolve_folds": resolve_folds,
}
"""Op name to function."""
