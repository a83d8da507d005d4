"""Accepting drafts and placing the next ones."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.ops.contracts.verifying import SettledRows, VerifiedRows, VerifyAnswer


def settle_drafts(
    tokens: Tensor,
    broken: Tensor,
    rows: VerifiedRows,
    answer: VerifyAnswer,
    drafts: int,
    block: bool,
) -> SettledRows:
    count = rows.starts.shape[0]
    drawn, given = tokens.view(count, -1), rows.ids.view(count, -1)
    columns = torch.arange(1, drawn.shape[1], dtype=torch.int32)
    sound = ~broken.view(count, -1)
    same = (drawn[:, :-1] == given[:, 1:]) & (columns < rows.live.unsqueeze(1))
    same &= sound[:, 1:] & sound[:, :1]
    accepted = same.cumprod(1).sum(1).to(torch.int32)
    for place, made in (
        (answer.tokens, tokens),
        (answer.broken, broken),
        (answer.accepted, accepted),
    ):
        place.copy_(made)
    last = torch.arange(count) * drawn.shape[1] + accepted
    first = rows.starts + accepted + 1
    wanted = (rows.remaining - accepted - 2).minimum(rows.most).clamp(0, drafts)
    steps = torch.zeros(1, dtype=torch.int32) if block else torch.arange(drafts, dtype=torch.int32)
    width = drafts + 1 if block else 1
    starts = first + steps.unsqueeze(1)
    live = wanted + (wanted > 0) if block else wanted > steps.unsqueeze(1)
    at = (starts + rows.deltas).unsqueeze(2) + torch.arange(width, dtype=torch.int32)
    positions = at.flatten(1).unsqueeze(1).repeat(1, 3, 1)
    return SettledRows(tokens[last], last, starts, live.to(torch.int32).view_as(starts), positions)
