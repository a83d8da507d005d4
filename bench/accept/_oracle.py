"""Random checkpoints of the architecture, and what transformers computes from them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PUBLISHED: dict[str, Any] = {
    "head_dim": 256, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10], "mrope_interleaved": True,
    },
}  # fmt: skip
"""What all published sizes share."""


def _shape(
    hidden: int, ffn: int, layers: int, heads: tuple[int, int], linear: tuple[int, int],
    vocab: int, tied: bool,
) -> dict[str, Any]:  # fmt: skip
    return {
        "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads[0], "num_key_value_heads": heads[1],
        "linear_num_key_heads": linear[0], "linear_num_value_heads": linear[1],
        "vocab_size": vocab, "tie_word_embeddings": tied,
    }  # fmt: skip


SHAPES = {
    "tied": _shape(192, 320, 4, (4, 2), (1, 2), 1000, True),
    "untied": _shape(256, 512, 8, (8, 2), (2, 4), 2560, False),
    "equal heads": _shape(128, 384, 4, (8, 1), (2, 2), 320, True),
    "0.8b": _shape(1024, 3584, 24, (8, 2), (16, 16), 248320, True),
}
UNNAMED = 16
"""Last rows of the vocabulary that the tokenizer does not know."""


def checkpoint(shape: str, folder: Path, seed: int = 0) -> Path:
    """A Hugging Face directory with seeded weights that bf16 holds exactly."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(**copy.deepcopy(PUBLISHED | SHAPES[shape]))
    with torch.device("meta"):
        model = Qwen3_5ForCausalLM(config)
    model = model.to_empty(device="cpu").eval()
    _fill(model, seed)
    path = folder / shape.replace(" ", "_")
    model.to(torch.bfloat16).save_pretrained(path)
    _tokenizer(path, SHAPES[shape]["vocab_size"] - UNNAMED)
    return path


def load(path: Path, dtype: torch.dtype, device: str) -> Any:
    from transformers import Qwen3_5ForCausalLM

    return Qwen3_5ForCausalLM.from_pretrained(path, dtype=dtype).to(device).eval()


def log_probabilities(model: Any, token_ids: list[int], vocabulary: int) -> Tensor:
    """log p f32[n, vocabulary] of the next token at every position, of the first tokens alone."""
    device = next(model.parameters()).device
    with torch.inference_mode():
        logits = model(torch.tensor([token_ids], device=device)).logits[0, :, :vocabulary]
        return logits.float().log_softmax(-1)


def prepare() -> None:
    """fp32 products without the short mantissas that a GPU may take for them; no progress bars."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def _fill(model: Any, seed: int) -> None:
    """Norms, gates and decays away from the values that would hide a wrong convention."""
    generator = torch.Generator().manual_seed(seed)
    gain = 0.7 * (4 / model.config.num_hidden_layers) ** 0.5
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("A_log"):
                noise = noise.abs().add(0.1).log()
            elif name.endswith(("linear_attn.norm.weight", "dt_bias")):
                noise = 1 + 0.3 * noise
            elif "norm" in name:
                noise = 0.3 * noise
            elif "conv1d" in name:
                noise = 0.5 * noise
            elif "embed_tokens" in name or "lm_head" in name:
                noise = 3 * noise * parameter.shape[-1] ** -0.5
            else:
                noise = gain * noise * parameter.shape[-1] ** -0.5
            parameter.copy_(noise)
        model.tie_weights()


def _tokenizer(path: Path, words: int) -> None:
    from ninfer_qwen3_5.geometry.vocabulary import tokenizer_json

    (path / "tokenizer.json").write_bytes(tokenizer_json(words))
    (path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
