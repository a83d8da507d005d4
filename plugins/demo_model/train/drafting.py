"""Blocks over replies: training losses of DFlash drafters, and their greedy drafts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from train.acceptance import Tally
from train.dflash import Blocks, Drafter, Taps, block_ids
from train.dflash2 import Drafter2, Selector

LOSS_DECAY = 4.0
"""Row j of a block counts exp(-(j - 1) / 4): it is accepted only after all rows before it."""

DRAFTERS = {"DFlashDraftModel": Drafter, "DFlash2DraftModel": Drafter2}


@dataclass(frozen=True, slots=True)
class Drafting:
    """A frozen target, its taps and the drafter that reads them."""

    model: Any
    taps: Taps
    drafter: Drafter
    block_size: int
    mask: int
    addressable: int

    @staticmethod
    def of(model: Any, config: dict[str, Any], drafter: Drafter, addressable: int) -> Drafting:
        """``config`` is the drafter's; ``addressable`` counts the tokens that may be drafted."""
        nested = config["dflash_config"]
        size = config.get("block_size") or nested["block_size"]
        taps = Taps(model, nested["target_layer_ids"])
        return Drafting(model, taps, drafter, size, nested["mask_token_id"], addressable)

    @staticmethod
    def load(model: Any, directory: Path, addressable: int) -> Drafting:
        """A published drafter, in fp32, beside its target."""
        config = json.loads((directory / "config.json").read_text("utf-8"))
        drafter = DRAFTERS[config["architectures"][0]](config)
        stored = load_file(directory / "model.safetensors")
        drafter.load_state_dict({name: value.float() for name, value in stored.items()})
        return Drafting.of(model, config, drafter.eval(), addressable)

    @torch.no_grad()
    def features(self, ids: Tensor) -> Tensor:
        """[B, T, taps * H] of ids [B, T]; causal, so right padding is harmless."""
        masks = {"full_attention": None, "linear_attention": None}
        self.model.model(ids, attention_mask=masks, use_cache=False)
        return self.taps.features()

    def hidden(self, ids: Tensor, features: Tensor, anchors: Tensor) -> Tensor:
        """[B, N, W - 1, H] of the mask rows behind anchors [B, N] in ids [B, T]."""
        blocks = Blocks(anchors, self.block_size)
        table = self.model.model.embed_tokens.weight
        embedded = functional.embedding(block_ids(ids, blocks, self.mask), table)
        hidden: Tensor = self.drafter(embedded, features, blocks)
        return hidden.reshape(*anchors.shape, self.block_size, -1)[:, :, 1:]

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., V] by the target's head, over addressable tokens alone."""
        table = self.model.model.embed_tokens.weight
        return functional.linear(hidden, table[: self.addressable])

    @torch.no_grad()
    def drafts(self, ids: Tensor, features: Tensor, anchors: Tensor) -> Tensor:
        """Greedy drafts [N, W-1] after each of anchors [N] in ids [T]."""
        hidden = self.hidden(ids[None], features, anchors[None])[0]
        logits = self.logits(hidden)
        if isinstance(self.drafter, Drafter2):
            return self.drafter.candidate_selector.walk(logits, hidden, ids[anchors])
        return logits.argmax(-1)

    def loss(self, ids: Tensor, ends: Tensor, anchors: Tensor) -> Tensor:
        """Weighted cross entropy of the tokens behind ``anchors`` [B, N], of which -1 is none;
        ``ends`` [B] are the lengths of the rows of ids [B, T]. DFlash2's selector adds its own,
        after true tokens."""
        features = self.features(ids)
        hidden = self.hidden(ids, features, anchors.clamp(min=0))
        steps = torch.arange(1, self.block_size)
        places = anchors[..., None] + steps
        wanted = (anchors[..., None] >= 0) & (places < ends[:, None, None])
        padded = functional.pad(ids, (0, self.block_size))
        labels = padded.gather(1, places.flatten(1)).view_as(places)[wanted]
        before = padded.gather(1, (places.flatten(1) - 1).clamp(min=0)).view_as(places)[wanted]
        weights = torch.exp(-(steps - 1) / LOSS_DECAY).expand_as(places)[wanted]
        rows = hidden[wanted]
        logits = self.logits(rows)
        total = _weighed(logits, labels, weights)
        if isinstance(self.drafter, Drafter2):
            selector = self.drafter.candidate_selector
            total = total + _selected(selector, logits, rows, labels, before, weights)
        return total


def _selected(
    selector: Selector,
    logits: Tensor,
    hidden: Tensor,
    labels: Tensor,
    before: Tensor,
    weights: Tensor,
) -> Tensor:
    """A label that is no candidate takes the last one's place."""
    candidates = logits.detach().topk(selector.top_k, -1).indices
    missing = (candidates != labels[:, None]).all(-1)
    candidates[:, -1] = torch.where(missing, labels, candidates[:, -1])
    scores = selector.scores(logits, candidates, hidden, before)
    return _weighed(scores, (candidates == labels[:, None]).int().argmax(-1), weights)


def _weighed(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    entropy = functional.cross_entropy(logits, labels, reduction="none")
    return (entropy * weights).sum() / weights.sum()


@torch.no_grad()
def count_block_rounds(subject: Drafting, ids: list[int], prompt: int, tally: Tally) -> None:
    """Replay greedy decoding of `ids[prompt:]`, which is the target's own continuation.

    Every block is a whole one; a round near the end counts only the drafts that the reply has
    room for.
    """
    row = torch.tensor(ids)
    anchors = torch.arange(prompt, len(ids) - 1)
    if not len(anchors):
        return
    found = subject.drafts(row, subject.features(row[None]), anchors).tolist()
    known = prompt
    while known < len(ids) - 1:
        room = min(tally.drafts, len(ids) - 1 - known)
        drafts, wanted = found[known - prompt], ids[known + 1 : known + 1 + room]
        hits = 0
        while hits < room and drafts[hits] == wanted[hits]:
            hits += 1
        tally.add(room, hits)
        known += hits + 1
