"""Resolving rows, accepting drafts, placing the next ones, and what rounds keep."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import TokenCounts
from ninfer_core.ops.contracts.verifying import (
    DRAFTS,
    LAST,
    LIVE,
    REMAINING,
    START,
    TAKEN,
    TOKEN,
    Behind,
    FoldRows,
    Folds,
    GivenRows,
    ResolvedRows,
    SettledRows,
    VerifyAnswer,
)
from ninfer_core.ops.reference.logits import count_tokens


def resolve_rows(given: GivenRows, kept: Tensor, tokens: Tensor) -> ResolvedRows:
    count, at = given.lanes.shape[0], given.lanes.long()
    ids = given.ids.view(count, -1).clone()
    columns = torch.arange(ids.shape[1], dtype=torch.int32)
    words, known = kept.index_select(0, at), given.behind == Behind.SPECULATIVE
    ids[:, 0] = torch.where(given.behind == Behind.PLAIN, tokens.index_select(0, at), ids[:, 0])
    own = torch.cat([words[:, TOKEN : TOKEN + 1], words[:, DRAFTS:]], 1)[:, : ids.shape[1]]
    ids = torch.where(known.unsqueeze(1), own, ids)
    starts = torch.where(known, words[:, START], given.starts)
    places = starts.unsqueeze(1) + columns
    positions = (places + given.deltas.unsqueeze(1)).flatten().expand(3, -1).contiguous()
    return ResolvedRows(
        ids=ids.flatten(),
        starts=starts,
        live=torch.where(known, words[:, LIVE], given.live),
        deltas=given.deltas,
        tables=given.lanes,
        remaining=torch.where(known, words[:, REMAINING], given.remaining),
        most=given.most,
        places=given.places,
        slots=given.slots.long(),
        positions=positions,
        lanes=at.unsqueeze(1).expand(-1, columns.shape[0]).flatten(),
        chosen=(places + 1).flatten(),
    )


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
    drawn = tokens.view(count, -1)
    accepted = _accepted(drawn, broken.view(count, -1), rows)
    for place, made in (
        (answer.tokens, tokens),
        (answer.broken, broken),
        (answer.accepted, accepted),
    ):
        place.copy_(made)
    first = rows.starts + accepted + 1
    _place(rows, accepted, first, settled, block)
    token = drawn.gather(1, accepted.long().unsqueeze(1)).squeeze(1)
    last, lanes = rows.places + accepted, rows.tables.long()
    settled.tokens.copy_(token)
    settled.last.copy_(last)
    left = rows.remaining - accepted - 1
    words = torch.stack([token, first, left, accepted + 1, last, torch.ones_like(last)], 1)
    kept[:, :DRAFTS].index_copy_(0, lanes, words)
    if counts is not None:
        count_tokens(counts, lanes, drawn, accepted + 1)


def _accepted(drawn: Tensor, broken: Tensor, rows: ResolvedRows) -> Tensor:
    """Accepted drafts i32[B]."""
    given = rows.ids.view(drawn.shape)
    columns = torch.arange(1, drawn.shape[1], dtype=torch.int32)
    same = (drawn[:, :-1] == given[:, 1:]) & (columns < rows.live.unsqueeze(1))
    same &= ~broken[:, 1:] & ~broken[:, :1]
    return same.cumprod(1).sum(1).to(torch.int32)


def _place(
    rows: ResolvedRows, accepted: Tensor, first: Tensor, settled: SettledRows, block: bool
) -> None:
    """Fill where drafts are made: starts, live, tables and positions."""
    places, count = settled.starts.shape
    width = settled.positions.shape[2] // count
    drafts = width - 1 if block else places
    wanted = (rows.remaining - accepted - 2).minimum(rows.most).clamp(0, drafts)
    steps = torch.arange(places, dtype=torch.int32).unsqueeze(1)
    starts = first + steps
    settled.starts.copy_(starts)
    settled.live.copy_(wanted + (wanted > 0) if block else wanted > steps)
    settled.tables.copy_(rows.tables.expand(places, -1))
    at = (starts + rows.deltas).unsqueeze(2) + torch.arange(width, dtype=torch.int32)
    settled.positions.copy_(at.flatten(1).expand(3, -1, -1))


def keep_drafts(
    drafts: Tensor, settled: SettledRows, kept: Tensor, answer: Tensor, block: bool
) -> None:
    live, count = settled.live, drafts.shape[1]
    # A chain has a live row at the place of each draft, a block its first column besides.
    rows = live[0].clamp(min=1) if block else live.sum(0) + 1
    words = torch.cat([rows.int().unsqueeze(1), drafts], 1)
    kept[:, LIVE : DRAFTS + count].index_copy_(0, settled.tables[0].long(), words)
    answer[:, :count].copy_(drafts)


def resolve_folds(
    rows: FoldRows, kept: Tensor, hidden: Tensor | None, pool: Tensor | None
) -> Folds:
    words, targets = kept.index_select(0, rows.lanes.long()), rows.targets.long()
    counts = torch.where(rows.counts < 0, words[:, TAKEN], rows.counts)
    last = torch.where(rows.last < 0, words[:, LAST], rows.last)
    if hidden is not None and pool is not None:
        pool.index_copy_(0, targets, hidden.index_select(0, last.long()))
    return Folds(rows.slots.long(), targets, counts)
