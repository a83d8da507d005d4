"""The demo model's configuration, as it stands in its `config.json`."""

from __future__ import annotations

from typing import Any

VOCAB_ROWS = 2560
"""Rows of the embedding; those past the tokenizer's last id are unused, as in released models."""

END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"


def configuration(ids: dict[str, int]) -> dict[str, Any]:
    """The flat text configuration; `ids` maps special tokens to their ids."""
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "vocab_size": VOCAB_ROWS,
        "hidden_size": 192,
        "intermediate_size": 320,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
        },
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": ids[END_OF_TEXT],
        "pad_token_id": ids[END_OF_TEXT],
    }


def generation_defaults(ids: dict[str, int]) -> dict[str, Any]:
    """The contents of `generation_config.json`."""
    return {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "eos_token_id": [ids[END_OF_TURN], ids[END_OF_TEXT]],
        "pad_token_id": ids[END_OF_TEXT],
    }


def drafter_configuration(kind: str, first_unused: int) -> dict[str, Any]:
    """`config.json` of a drafter, ``dflash`` or ``dflash2``; the mask is the first unused row.

    The two spell their keys as different released drafters do.
    """
    second = kind == "dflash2"
    nested = {"target_layer_ids": [1, 3, 6], "mask_token_id": first_unused}
    shared = {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": VOCAB_ROWS,
        "hidden_size": 192,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "sliding_window": 64,
        "use_sliding_window": True,
        "num_target_layers": 8,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    }
    if not second:
        return shared | {"rope_theta": 10_000, "block_size": 8, "dflash_config": nested}
    added = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 16}
    return shared | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000},
        "is_causal": False,
        "dflash_config": nested | added | {"selector_top_k": 16, "block_size": 8},
    }
