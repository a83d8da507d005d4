"""Drafters that are published beside the released models, each by its ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ninfer_qwen3_5.geometry.table import SIZES, VOCABULARY

MASK: Final = 248_070
WINDOW: Final = 2048
LAYERS: Final = 5

_TAPS: Final = {
    ("9b", "dflash"): (1, 8, 15, 22, 29),
    ("9b", "dflash2"): (1, 8, 15, 22, 29),
    ("27b", "dflash"): (1, 16, 31, 46, 61),
    ("27b", "dflash2"): (5, 19, 33, 47, 61),
}


def drafters_of(size_name: str) -> dict[str, dict[str, Any]]:
    """Configurations of the DFlash and DFlash2 drafter of a size, by component; none where none is
    known.

    Of 27B they are those of Qwen3.5-27B-DFlash and Qwen3.8-27B-DFlash2, whose target has the same
    shape. Of 9B the taps are published; layers are those of Qwen3-8B-DFlash-b16, which has the same
    hidden size, and a DFlash2 is not published: it is the one of 27B on these layers.
    """
    return {
        component: _config(size_name, component, taps)
        for (name, component), taps in _TAPS.items()
        if name == size_name
    }


def _config(size_name: str, component: str, taps: tuple[int, ...]) -> dict[str, Any]:
    size, second = SIZES[size_name], component == "dflash2"
    nested: dict[str, Any] = {"target_layer_ids": list(taps), "mask_token_id": MASK}
    return {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "num_target_layers": size.layers,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000},
        "block_size": 8 if second else 16,
        **(_SLIDING if second else _FULL),
        "dflash_config": nested | (_SECOND if second else {}),
        "dtype": "bfloat16",
    }


_FULL: Final[Mapping[str, Any]] = {"layer_types": ["full_attention"] * LAYERS}
_SLIDING: Final[Mapping[str, Any]] = {
    "layer_types": ["sliding_attention"] * LAYERS,
    "sliding_window": WINDOW,
    "use_sliding_window": True,
    "is_causal": False,
}
_SECOND: Final[dict[str, Any]] = {
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 256,
    "selector_top_k": 16,
}
