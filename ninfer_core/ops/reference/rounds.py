"""A round's first and last op on host tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.ops.contracts.rounds import (
    CHANGE_WORDS,
    EGRESS_HEADER_WORDS,
    EGRESS_ROW_WORDS,
    HEADER_WORDS,
    ROUND_MISMATCH,
    ROW_WORDS,
    LaneTables,
    RoundRing,
    RoundRows,
)
from ninfer_core.ops.contracts.values import TokenCounts


def begin_round(ring: RoundRing, tables: LaneTables, rows: RoundRows) -> None:
    number, count = int(ring.counter), rows.ids.shape[0]
    place = number % ring.ingress.shape[0]
    words, answer = ring.ingress[place], ring.egress[place]
    answer[1] = 0 if words[0] == number and words[1] == count else ROUND_MISMATCH
    first_change = HEADER_WORDS + ROW_WORDS * ring.lanes
    changes = words[first_change : first_change + CHANGE_WORDS * int(words[2])]
    for lane, index, page in changes.view(-1, CHANGE_WORDS).tolist():
        tables.block_tables[lane, index] = page
    given = words[HEADER_WORDS : HEADER_WORDS + ROW_WORDS * count].view(count, ROW_WORDS)
    lane, token, start, slot, target, delta = given[:, :6].unbind(1)
    rows.lanes.copy_(lane)
    rows.table_rows.copy_(lane)
    rows.ids.copy_(torch.where(token < 0, tables.tokens.index_select(0, lane), token))
    rows.starts.copy_(start)
    rows.live.fill_(1)
    rows.slots.copy_(slot)
    rows.targets.copy_(target)
    rows.positions.copy_((start + delta).expand(3, -1))
    rows.chosen.copy_(start + 1)


def publish_round(
    ring: RoundRing,
    tables: LaneTables,
    rows: RoundRows,
    counts: TokenCounts,
    tokens: Tensor,
    broken: Tensor,
) -> None:
    number, count = int(ring.counter), rows.ids.shape[0]
    answer = ring.egress[number % ring.egress.shape[0]]
    tables.tokens[rows.lanes] = tokens
    counts.generated[rows.lanes, tokens.long()] += 1
    listed = answer[EGRESS_HEADER_WORDS : EGRESS_HEADER_WORDS + EGRESS_ROW_WORDS * count]
    listed.view(count, EGRESS_ROW_WORDS).copy_(torch.stack([tokens, broken.to(torch.int32)], dim=1))
    answer[2] = count
    answer[0] = number + 1
    ring.counter.add_(1)
