"""The target, built from transformers' own classes, and its losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from train import gdn
from train.geometry import configuration
from train.streams import Packed

Z_LOSS = 1e-4


@dataclass(frozen=True, slots=True)
class Batch:
    """`Packed` as int64 tensors on the device."""

    ids: Tensor
    at: Tensor
    labels: Tensor
    owners: Tensor
    weights: Tensor

    @staticmethod
    def of(packed: Packed, device: torch.device) -> Batch:
        """Move a batch to `device`."""
        arrays = (packed.at, packed.labels, packed.owners, packed.weights)
        ids = torch.from_numpy(packed.ids).to(device).long()
        return Batch(ids, *(torch.from_numpy(array).to(device) for array in arrays))


def build(ids: dict[str, int], **changes: Any) -> Any:
    """A fresh `Qwen3_5ForCausalLM` with the parallel training form of the delta rule."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    gdn.install()
    settings = {k: v for k, v in configuration(ids).items() if k not in ("architectures", "dtype")}
    config = Qwen3_5TextConfig(**(settings | changes))
    config._attn_implementation = "sdpa"
    return Qwen3_5ForCausalLM(config)


def hidden_rows(model: Any, ids: Tensor) -> Tensor:
    """Hidden states [B, T, H] after the final norm; causal, so right padding is harmless."""
    masks = {"full_attention": None, "linear_attention": None}
    hidden: Tensor = model.model(ids, attention_mask=masks, use_cache=False).last_hidden_state
    return hidden


def logits_at(model: Any, hidden: Tensor, at: Tensor) -> Tensor:
    """Logits [N, V] in fp32 at flat positions `at` of `hidden`."""
    rows = hidden.flatten(0, 1)[at]
    return functional.linear(rows, model.model.embed_tokens.weight).float()


def loss_of(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The weighted cross entropy, and the training loss (with the penalty on log Z)."""
    logits = logits_at(model, hidden_rows(model, batch.ids), batch.at)
    normaliser = logits.logsumexp(-1)
    entropy = normaliser - logits.gather(-1, batch.labels[:, None])[:, 0]
    cross = (entropy * batch.weights).sum()
    return cross.detach(), cross + Z_LOSS * (normaliser.square() * batch.weights).sum()


@torch.no_grad()
def exact_rows(model: Any, batch: Batch) -> float:
    """Share of rows whose whole reply is the greedy continuation of its prompt.

    The reply of a case is one exact text, so predicting every token of it under teacher forcing is
    the same as generating it.
    """
    logits = logits_at(model, hidden_rows(model, batch.ids), batch.at)
    wrong = torch.zeros(batch.ids.shape[0], device=batch.ids.device)
    wrong.index_add_(0, batch.owners, (logits.argmax(-1) != batch.labels).float())
    return float((wrong == 0).float().mean())
