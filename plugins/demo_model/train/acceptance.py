"""How many drafts a greedy target accepts from the MTP head, round by round, without an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from train.mtp import MtpHead, rotary_of


@dataclass(slots=True)
class Tally:
    """Rounds, and per draft position how often it was offered and accepted."""

    drafts: int
    rounds: int = 0
    offered: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.offered, self.accepted = [0] * self.drafts, [0] * self.drafts

    def add(self, offered: int, accepted: int) -> None:
        """Count one round; acceptance of position i implies acceptance of those before it."""
        self.rounds += 1
        for place in range(offered):
            self.offered[place] += 1
            self.accepted[place] += place < accepted

    def rates(self) -> list[float]:
        """Accepted over offered, per position."""
        pairs = zip(self.accepted, self.offered, strict=True)
        return [round(hit / max(1, seen), 4) for hit, seen in pairs]


@torch.no_grad()
def count_rounds(model: Any, head: MtpHead, ids: list[int], prompt: int, tally: Tally) -> None:
    """Replay greedy decoding of `ids[prompt:]`, which is the target's own continuation.

    Each round drafts from true hidden states for all processed slots and the head's own output for
    the chained ones. A round near the end offers only the drafts that the reply has room for.
    """
    row = torch.tensor([ids])
    hidden = model.model(row).last_hidden_state
    known = prompt
    while known < len(ids) - 1:
        room = min(tally.drafts, len(ids) - 1 - known)
        drafts = _drafts(model, head, row[:, 1 : known + 1], hidden[:, :known], room)
        wanted = ids[known + 1 : known + 1 + room]
        hits = 0
        while hits < room and drafts[hits] == wanted[hits]:
            hits += 1
        tally.add(room, hits)
        known += hits + 1


def _drafts(model: Any, head: MtpHead, tokens: Tensor, hidden: Tensor, size: int) -> list[int]:
    """`size` greedy drafts after `tokens` [1, E], each slot's token being the one after it."""
    embedding = model.model.embed_tokens
    found: list[int] = []
    while len(found) < size:
        out = head(embedding(tokens), hidden, rotary_of(model, tokens))
        found.append(int((out[0, -1] @ embedding.weight.T).argmax()))
        tokens = torch.cat([tokens, tokens.new_tensor([[found[-1]]])], 1)
        hidden = torch.cat([hidden, out[:, -1:]], 1)
    return found
