"""The sizes of the released dense Qwen3.5 models, and the ``config.json`` that each amounts to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

VOCABULARY: Final = 248_320
"""Rows of embedding and head, the last ones padding."""

TOKENS: Final = 248_077
"""Entries of the released tokenizer: the ids that a model may be given and may answer."""


@dataclass(frozen=True, slots=True)
class Size:
    """What tells the released sizes apart; every fourth layer is full attention."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    value_heads: int
    inner: int
    tied: bool


SIZES: Final[Mapping[str, Size]] = {
    "0.8b": Size(1024, 24, 8, 2, 16, 3584, tied=True),
    "2b": Size(2048, 24, 8, 2, 16, 6144, tied=True),
    "4b": Size(2560, 32, 16, 4, 32, 9216, tied=True),
    "9b": Size(4096, 32, 16, 4, 32, 12288, tied=False),
    "27b": Size(5120, 64, 24, 4, 48, 17408, tied=False),
}


def config_of(size: Size) -> dict[str, Any]:
    """The flat ``config.json`` of a text model of this size. It names no end of sequence."""
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": VOCABULARY,
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "num_hidden_layers": size.layers,
        "full_attention_interval": 4,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": size.value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "attn_output_gate": True,
        "attention_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262_144,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
        },
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "tie_word_embeddings": size.tied,
        "dtype": "bfloat16",
    }
