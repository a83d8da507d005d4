"""TextConfig: key by key, from nested and flat files, with clear refusals."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from ninfer_core.artifact import ArtifactError
from ninfer_qwen3_5.config import ARCHITECTURES, MoeConfig, TextConfig
from ninfer_qwen3_5.convert.parameters import mtp_parameters, text_parameters
from ninfer_qwen3_5.plugin import ninfer_architectures

TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "attention_bias": False,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    },
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "eos_token_id": 248044,
    "intermediate_size": 3584,
}


def nested(**text: Any) -> dict[str, Any]:
    """A vision-language config.json around the text keys."""
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": True,
        "text_config": {**copy.deepcopy(TEXT), **text},
        "vision_config": {"depth": 12},
    }


def flat(**text: Any) -> dict[str, Any]:
    base = {"architectures": ["Qwen3_5ForCausalLM"], "tie_word_embeddings": True}
    return {**base, **copy.deepcopy(TEXT), **text}


def test_the_nested_config_of_the_smallest_model() -> None:
    config = TextConfig.from_json(nested())
    assert config.architecture == "Qwen3_5ForConditionalGeneration"
    assert config.layer_types.count("full_attention") == 6
    assert [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"] == [
        *range(3, 24, 4)
    ]
    assert config.rotary_dim == 64
    assert config.rope_theta == 1e7
    assert config.mrope_section == (11, 11, 10)
    assert config.conv_channels == 6144
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (248044,)
    assert config.mtp_num_hidden_layers == 1


def test_flat_and_nested_read_the_same() -> None:
    one, other = TextConfig.from_json(flat()), TextConfig.from_json(nested())
    for field in TextConfig.__dataclass_fields__:
        if field != "architecture":
            assert getattr(one, field) == getattr(other, field)


# Published parameter counts (text, MTP) of released sizes.
@pytest.mark.parametrize(
    ("changes", "tied", "text", "mtp"),
    [
        ({}, True, 752_393_024, 20_452_864),
        ({"hidden_size": 2048, "intermediate_size": 6144}, True, 1_881_825_088, 60_828_160),
        (
            {
                "hidden_size": 2560,
                "intermediate_size": 9216,
                "num_hidden_layers": 32,
                "num_attention_heads": 16,
                "num_key_value_heads": 4,
                "linear_num_value_heads": 32,
            },
            True,
            4_205_751_296,
            120_599_552,
        ),
        (
            {
                "hidden_size": 5120,
                "intermediate_size": 17408,
                "num_hidden_layers": 64,
                "num_attention_heads": 24,
                "num_key_value_heads": 4,
                "linear_num_value_heads": 48,
            },
            False,
            26_895_998_464,
            424_699_392,
        ),
    ],
    ids=["0.8B", "2B", "4B", "27B"],
)
def test_parameter_shapes_add_up_to_the_published_counts(changes, tied, text, mtp) -> None:
    config = TextConfig.from_json({**nested(**changes), "tie_word_embeddings": tied})
    count = [
        sum(math.prod(parameter.shape) for parameter in parameters)
        for parameters in (text_parameters(config), mtp_parameters(config))
    ]
    assert count == [text, mtp]
    assert len(mtp_parameters(config)) == 15


def test_tie_word_embeddings_of_the_top_level_wins() -> None:
    config = {**nested(tie_word_embeddings=True), "tie_word_embeddings": False}
    assert not TextConfig.from_json(config).tie_word_embeddings
    del config["tie_word_embeddings"]
    assert TextConfig.from_json(config).tie_word_embeddings


def test_explicit_layer_types_win_over_the_interval() -> None:
    kinds = ["full_attention"] * 2 + ["linear_attention"] * 22
    assert TextConfig.from_json(nested(layer_types=kinds)).layer_types == tuple(kinds)


def test_the_rotary_factor_may_stand_in_either_place() -> None:
    inside = nested(partial_rotary_factor=None)
    outside = nested()
    del outside["text_config"]["rope_parameters"]["partial_rotary_factor"]
    for config in (inside, outside):
        assert TextConfig.from_json(config).partial_rotary_factor == 0.25


def test_unknown_keys_are_ignored() -> None:
    config = nested(house_key={"x": 1})
    assert TextConfig.from_json({**config, "other": 2}) == TextConfig.from_json(nested())


def test_the_class_name_falls_back_on_the_model_type() -> None:
    config = flat()
    del config["architectures"]
    assert TextConfig.from_json(config).architecture == "Qwen3_5ForCausalLM"


def test_end_tokens_may_be_a_list_or_absent() -> None:
    assert TextConfig.from_json(nested(eos_token_id=[2, 1])).eos_token_ids == (2, 1)
    assert TextConfig.from_json(nested(eos_token_id=None)).eos_token_ids == ()


def test_mixture_of_experts_sizes_are_read() -> None:
    sizes = {
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }
    config = TextConfig.from_json(
        {**flat(**sizes, intermediate_size=None, model_type="qwen3_5_moe_text")}
        | {"architectures": ["Qwen3_5MoeForCausalLM"]}
    )
    assert config.moe == MoeConfig(**sizes)
    assert config.intermediate_size == 0


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "max_position_embeddings",
        "rope_parameters",
        "intermediate_size",
    ],
)
def test_a_required_key_is_named(key: str) -> None:
    config = nested()
    del config["text_config"][key]
    with pytest.raises(ArtifactError, match="is missing") as caught:
        TextConfig.from_json(config)
    assert caught.value.field == f"text_config.{key}"


def rope(**changes: Any) -> dict[str, Any]:
    return {"rope_parameters": {**TEXT["rope_parameters"], **changes}}


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"hidden_size": 0}, "hidden_size", "from 1"),
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers", "from 1 to 4096"),
        ({"hidden_size": "1024"}, "hidden_size", "expected an integer"),
        ({"hidden_act": "gelu"}, "hidden_act", "'gelu' is not supported"),
        ({"attention_bias": True}, "attention_bias", "only False is"),
        ({"attn_output_gate": False}, "attn_output_gate", "only True is"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type", "only 'swish' or 'silu' is"),
        ({"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype", "only 'float32' is"),
        ({"mlp_only_layers": [3]}, "mlp_only_layers", "only [] is"),
        ({"linear_conv_kernel_dim": 3}, "linear_conv_kernel_dim", "only 4 is"),
        ({"num_key_value_heads": 3}, "num_attention_heads", "no multiple of num_key_value_heads 3"),
        ({"linear_num_key_heads": 5}, "linear_num_value_heads", "no multiple"),
        ({"layer_types": ["full_attention"]}, "layer_types", "has 1 entries for 24 layers"),
        ({"layer_types": ["mamba"] * 24}, "layer_types[0]", "'mamba' is neither"),
        ({"full_attention_interval": None}, "layer_types", "is missing"),
        (rope(rope_type="yarn"), "rope_parameters.rope_type", "'yarn' is not supported"),
        (rope(mrope_section=[11, 11, 11]), "rope_parameters.mrope_section", "sums to 33"),
        (rope(mrope_section=[16, 16]), "rope_parameters.mrope_section", "3 are needed"),
        (rope(mrope_section=None), "rope_parameters.mrope_section", "is missing"),
        (rope(mrope_interleaved=False), "rope_parameters.mrope_interleaved", "false"),
        (rope(rope_theta=0), "rope_parameters.rope_theta", "from 1.0"),
        (rope(partial_rotary_factor=0.5), "partial_rotary_factor", "0.25 contradicts"),
        ({"num_experts": 4}, "num_experts_per_tok", "is missing"),
        ({"eos_token_id": "x"}, "eos_token_id", "expected an integer"),
        ({"mtp_num_hidden_layers": -1}, "mtp_num_hidden_layers", "from 0"),
    ],
)
def test_a_bad_value_is_named(changes, field: str, problem: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        TextConfig.from_json(nested(**changes))
    assert caught.value.field == f"text_config.{field}"
    assert problem in caught.value.problem
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"architectures": ["Qwen3NextForCausalLM"]}, "architectures[0]"),
        ({"model_type": "qwen4_exp"}, "model_type"),
        ({"model_type": "qwen3_next"}, "model_type"),
        ({"text_config": []}, "text_config"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_another_architecture_is_refused_by_name(changes, field: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        TextConfig.from_json({**nested(), **changes})
    assert caught.value.field == field


def test_what_transformers_saves_is_read() -> None:
    from transformers import Qwen3_5Config, Qwen3_5TextConfig

    keys = Qwen3_5TextConfig().to_dict()
    text = Qwen3_5TextConfig(**{k: v for k, v in TEXT.items() if k in keys})
    one = TextConfig.from_json({**text.to_dict(), "architectures": ["Qwen3_5ForCausalLM"]})
    full = Qwen3_5Config(text_config=text.to_dict(), vision_config={})
    other = TextConfig.from_json(full.to_dict())
    assert one.layer_types == other.layer_types == tuple(text.layer_types)
    assert one.mrope_section == other.mrope_section == (11, 11, 10)
    assert not other.tie_word_embeddings


def test_the_plugin_offers_the_architectures_that_are_read() -> None:
    assert [entry.architectures for entry in ninfer_architectures()] == [ARCHITECTURES]
