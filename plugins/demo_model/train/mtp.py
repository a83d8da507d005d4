"""The multi-token prediction head, named as its tensors are in released checkpoints."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from train.model import Batch, hidden_rows, logits_at

RECYCLED = 3
"""Draft steps that training unrolls, each fed with the hidden state of the one before."""

STEP_DECAY = 0.6


class MtpHead(nn.Module):
    """One full-attention layer over the next token's embedding and the target's hidden state.

    Shares the target's embedding, head and rotary positions. `state_dict()` holds the checkpoint's
    names without their `mtp.` prefix.
    """

    def __init__(self, config: Any) -> None:
        from transformers.models.qwen3_5 import modeling_qwen3_5 as module

        super().__init__()
        if config._attn_implementation != "sdpa":
            raise ValueError("the head needs a config of SDPA attention, which is causal unmasked")
        size, eps = config.hidden_size, config.rms_norm_eps
        place = config.layer_types.index("full_attention")
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = module.Qwen3_5RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = module.Qwen3_5RMSNorm(size, eps=eps)
        self.layers = nn.ModuleList([module.Qwen3_5DecoderLayer(config, place)])
        self.norm = module.Qwen3_5RMSNorm(size, eps=eps)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=config.initializer_range)

    def forward(self, embedded: Tensor, hidden: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Hidden states [B, T, H] that predict the token after the embedded one.

        Args:
            embedded: [B, T, H], slot t holding the embedding of token t + 1.
            hidden: [B, T, H], the target's states after its final norm, or this head's own output
                when it is chained.
            rotary: cosines and sines of the slots' positions.
        """
        joined = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        mixed = self.fc(torch.cat(joined, -1))
        out: Tensor = self.norm(self.layers[0](mixed, position_embeddings=rotary))
        return out


def rotary_of(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines for positions 0..T-1 of plain text."""
    positions = torch.arange(ids.shape[1], device=ids.device).expand(3, *ids.shape)
    pair: tuple[Tensor, Tensor] = model.model.rotary_emb(model.model.embed_tokens.weight, positions)
    return pair


def drafted_logits(model: Any, head: MtpHead, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """The target's logits for every label, and each draft step's logits for the same label."""
    with torch.no_grad():
        target = hidden_rows(model, batch.ids)
        wanted = logits_at(model, target, batch.at)
    hidden, rotary, drafted = target, rotary_of(model, batch.ids), []
    for step in range(RECYCLED):
        with torch.no_grad():
            embedded = model.model.embed_tokens(batch.ids.roll(-(step + 1), 1))
        hidden = head(embedded, hidden, rotary)
        drafted.append(logits_at(model, hidden, batch.at - (step + 1)))
    return wanted, drafted


def divergence(wanted: Tensor, drafted: list[Tensor], weights: Tensor) -> Tensor:
    """KL from the target's law to each step's, later steps counting less."""
    shares = [STEP_DECAY**step for step in range(len(drafted))]
    law = wanted.log_softmax(-1)
    losses = [
        (
            functional.kl_div(logits.log_softmax(-1), law, reduction="none", log_target=True).sum(
                -1
            )
            * weights
        )
        for logits in drafted
    ]
    joined = torch.stack([s * loss.sum() for s, loss in zip(shares, losses, strict=True)])
    return joined.sum() / sum(shares)


@torch.no_grad()
def agreement(model: Any, head: MtpHead, batch: Batch) -> list[float]:
    """Per draft step, the share of labels on which its argmax is the target's."""
    wanted, drafted = drafted_logits(model, head, batch)
    best = wanted.argmax(-1)
    return [round(float((logits.argmax(-1) == best).float().mean()), 4) for logits in drafted]
