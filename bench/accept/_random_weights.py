"""Random weights of transformers' Qwen3.5, which hide nothing."""

from __future__ import annotations

import torch
from transformers import Qwen3_5ForCausalLM


def randomise(model: Qwen3_5ForCausalLM, seed: int, *, embedding: float, head: float) -> None:
    """Fresh models hide wrong norm conventions behind zeros and ones; these do not. Entries of the
    ``embedding`` and of the ``head`` get these standard deviations, which decide how sure the laws
    of next tokens are."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("A_log"):
                parameter.copy_(noise.abs().add(0.1).log())
            elif "norm" in name or name.endswith("dt_bias"):
                parameter.add_(0.3 * noise)
            elif "conv1d" in name:
                parameter.copy_(0.5 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(embedding * noise)
            elif "lm_head" in name:
                parameter.copy_(head * noise)
            else:
                parameter.copy_(0.7 * noise * parameter.shape[-1] ** -0.5)
