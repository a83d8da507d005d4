"""The convolution, the candidates and the walk of block drafters."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import Candidates
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference.lanes import widen

MOST_CANDIDATES = 64


def block_conv(x: Tensor, dynamic: Tensor, base: Tensor, side: int, width: int) -> Tensor:
    rows, channels = x.shape
    taps = widen(dynamic).view(rows, 2, 2, -1)[:, side]
    taps = taps.repeat_interleave(channels // taps.shape[2], dim=2) + base[side]
    blocks = widen(x).view(-1, width, channels)
    before = torch.zeros_like(blocks)
    before[:, 1:] = blocks[:, :-1]
    mixed = taps[:, 0] * blocks.flatten(0, 1) + taps[:, 1] * before.flatten(0, 1)
    return mixed.to(x.dtype)


def draft_candidates(logits: Tensor, count: int, addressable: int) -> Candidates:
    if not 1 <= count <= min(MOST_CANDIDATES, addressable):
        raise OpError(
            f"{count} candidates of {addressable} tokens; 1 to {MOST_CANDIDATES} are taken, and at "
            "most as many as there are tokens"
        )
    usable = logits[:, :addressable].nan_to_num(-torch.inf, torch.inf, -torch.inf)
    values, ids = usable.sort(dim=1, descending=True, stable=True)
    return Candidates(ids[:, :count].to(torch.int32), values[:, :count].contiguous())


def draft_walk(
    candidates: Candidates,
    hidden: Tensor,
    anchors: Tensor,
    predecessor: Tensor,
    successor: Tensor,
) -> Tensor:
    sequences, count = anchors.shape[0], candidates.ids.shape[1]
    ids = candidates.ids.view(sequences, -1, count)
    values = candidates.values.view(sequences, -1, count)
    features = widen(hidden).view(sequences, ids.shape[1], -1)
    taken, drafts = anchors, []
    for row in range(ids.shape[1]):
        left = widen(predecessor[taken.long()]) * features[:, row]
        right = widen(successor[ids[:, row].long()])
        scores = values[:, row] + (left.unsqueeze(1) * right).sum(2)
        best = scores.nan_to_num(-torch.inf, torch.inf, -torch.inf).argmax(1, keepdim=True)
        taken = ids[:, row].gather(1, best).squeeze(1)
        drafts.append(taken)
    return torch.stack(drafts, dim=1)
