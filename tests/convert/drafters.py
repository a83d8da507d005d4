"""Published drafter configurations, and tiny random drafters for the tiny checkpoints."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

FULL, SLIDING = "full_attention", "sliding_attention"


def published(architecture: str, sizes: tuple[int, ...], kinds: list[str], **more: Any) -> Any:
    """``sizes``: hidden, intermediate, heads, KV heads, vocabulary, target's layers."""
    hidden, inner, heads, kv_heads, vocabulary, layers = sizes
    return {
        "architectures": [architecture],
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": len(kinds),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "layer_types": kinds,
        "num_target_layers": layers,
        "vocab_size": vocabulary,
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "attention_bias": False,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        **more,
    }


def nested(mask: int, taps: list[int], **more: Any) -> dict[str, Any]:
    return {"mask_token_id": mask, "target_layer_ids": taps, **more}


V1, V2 = "DFlashDraftModel", "DFlash2DraftModel"
WIDE = (5120, 17408, 32, 8, 248320, 64)
SECOND = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}
PUBLISHED: dict[str, Any] = {
    "Qwen3-8B-DFlash-b16": published(
        V1,
        (4096, 12288, 32, 8, 151936, 36),
        [FULL] * 5,
        rope_theta=1_000_000,
        rope_scaling=None,
        sliding_window=None,
        use_sliding_window=False,
        max_window_layers=5,
        block_size=16,
        dflash_config=nested(151669, [1, 9, 17, 25, 33]),
    ),
    "Qwen3.5-4B-DFlash": published(
        V1,
        (2560, 9728, 32, 8, 248320, 32),
        [FULL] * 5,
        rope_parameters={"rope_theta": 1e7, "rope_type": "default"},
        block_size=16,
        dflash_config=nested(248077, [1, 5, 9, 13, 17, 21, 25, 29]),
    ),
    "Qwen3.5-9B-DFlash": published(
        V1,
        (4096, 12288, 32, 8, 248320, 32),
        [FULL] * 5,
        rope_theta=10_000_000,
        block_size=16,
        dflash_config=nested(248070, [1, 8, 15, 22, 29]),
    ),
    "Qwen3.5-27B-DFlash": published(
        V1,
        WIDE,
        [FULL] * 5,
        rope_theta=10_000_000,
        block_size=16,
        dflash_config=nested(248070, [1, 16, 31, 46, 61]),
    ),
    "Qwen3.6-27B-DFlash": published(
        V1,
        WIDE,
        [SLIDING] * 4 + [FULL],
        rope_theta=10_000_000,
        use_sliding_window=True,
        sliding_window=2048,
        block_size=16,
        dflash_config=nested(248070, [1, 16, 31, 46, 61]),
    ),
    "Qwen3.6-35B-A3B-DFlash": published(
        V1,
        (2048, 6144, 32, 8, 248320, 40),
        [SLIDING] * 5 + [FULL],
        rope_theta=10_000_000,
        use_sliding_window=True,
        sliding_window=4096,
        dflash_config=nested(248077, [1, 6, 11, 16, 22, 27, 32, 37], block_size=16),
    ),
    "Qwen3.8-27B-DFlash2": published(
        V2,
        WIDE,
        [SLIDING] * 5,
        rope_parameters={"rope_theta": 10_000_000, "rope_type": "default"},
        is_causal=False,
        sliding_window=2048,
        dflash_config=nested(248070, [5, 19, 33, 47, 61], block_size=8, **SECOND),
    ),
    "Muse-Glimmer-30B-DFlash2": published(
        V2,
        (6656, 19968, 32, 8, 202048, 52),
        [SLIDING] * 5,
        rope_parameters={"rope_theta": 500_000},
        is_causal=False,
        sliding_window=2048,
        dflash_config=nested(
            200_000,
            [1, 13, 25, 37, 49],
            block_size=16,
            final_logit_softcapping=20,
            output_multiplier=0.196,
            **SECOND,
        ),
    ),
}
"""Keys as they are published; sizes that are not published here are made up and consistent."""


def tiny(second: bool = False) -> dict[str, Any]:
    """A drafter's configuration for the tiny checkpoints of ``conftest``."""
    config = published(
        V2 if second else V1,
        (64, 96, 4, 2, 512, 4),
        [SLIDING, FULL],
        rope_theta=10_000,
        sliding_window=32,
        use_sliding_window=True,
        block_size=8,
        dflash_config=nested(511, [0, 2], **({**SECOND, "selector_rank": 8} if second else {})),
    )
    return config | {"head_dim": 32}


def tiny_shapes(second: bool = False) -> dict[str, tuple[int, ...]]:
    """Names and shapes as the published description has them, written out by hand."""
    found: dict[str, tuple[int, ...]] = {
        "fc.weight": (64, 128),
        "hidden_norm.weight": (64,),
        "norm.weight": (64,),
    }
    for layer in ("layers.0.", "layers.1."):
        found |= {
            layer + "input_layernorm.weight": (64,),
            layer + "post_attention_layernorm.weight": (64,),
            layer + "self_attn.q_proj.weight": (128, 64),
            layer + "self_attn.k_proj.weight": (64, 64),
            layer + "self_attn.v_proj.weight": (64, 64),
            layer + "self_attn.o_proj.weight": (64, 128),
            layer + "self_attn.q_norm.weight": (32,),
            layer + "self_attn.k_norm.weight": (32,),
            layer + "mlp.gate_proj.weight": (96, 64),
            layer + "mlp.up_proj.weight": (96, 64),
            layer + "mlp.down_proj.weight": (64, 96),
        }
        if second:
            found |= {
                layer + "attention_conv.base_kernel": (2, 2, 64),
                layer + "attention_conv.kernel_projection.weight": (16, 64),
                layer + "mlp_conv.base_kernel": (2, 2, 64),
                layer + "mlp_conv.kernel_projection.weight": (16, 64),
            }
    if second:
        found |= {
            "candidate_selector.hidden_projection.weight": (8, 64),
            "candidate_selector.predecessor_codebook": (512, 8),
            "candidate_selector.successor_codebook": (512, 8),
        }
    return found


class DrafterDirectory:
    """A drafter on disk whose tensors and configuration can be changed before it is written."""

    def __init__(self, path: Path, second: bool = False) -> None:
        path.mkdir()
        generator = torch.Generator().manual_seed(6)
        self.path, self.config = path, copy.deepcopy(tiny(second))
        self.tensors = {
            name: torch.randn(shape, generator=generator).to(torch.bfloat16)
            for name, shape in tiny_shapes(second).items()
        }

    def write(self) -> Path:
        (self.path / "config.json").write_text(json.dumps(self.config))
        save_file(self.tensors, self.path / "model.safetensors")
        return self.path
