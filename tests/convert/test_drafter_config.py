"""A drafter's config.json: every published spelling, and what is refused by name."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from ninfer_core.artifact import ArtifactError
from ninfer_core.hookspecs import TargetFacts
from ninfer_spec_dflash.config import DFlashConfig, LayerPattern
from ninfer_spec_dflash.convert import describe
from tests.convert.drafters import FULL, PUBLISHED, SLIDING, V1, V2, tiny

FREE, CAUSAL = LayerPattern(False, None), LayerPattern(True, None)


def facts(config: dict[str, Any], **changes: Any) -> TargetFacts:
    fitting = {
        "layers": config["num_target_layers"],
        "hidden_size": config["hidden_size"],
        "vocab_size": config["vocab_size"],
    }
    return TargetFacts(architecture="Qwen3_5ForCausalLM", **(fitting | changes))


def changed(config: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with the key at a dotted path set, or removed for ``...``."""
    made = copy.deepcopy(config)
    *above, last = path.split(".")
    place = made
    for key in above:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return made


def refusal(path: str, value: object, config: dict[str, Any] | None = None) -> str:
    with pytest.raises(ArtifactError) as caught:
        DFlashConfig.from_json(changed(config or tiny(), path, value))
    assert caught.value.hint
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "tensors", "parameters"),
    [
        # Per layer 2H + HQ + 2HK + QH + 2D + 3HI, and H*nH + 2H; DFlash2 adds per layer
        # 2 (4H + 4H/16 * H) and RH + 2VR.
        ("Qwen3-8B-DFlash-b16", 58, 1_048_626_432),
        ("Qwen3.5-4B-DFlash", 58, None),
        ("Qwen3.5-9B-DFlash", 58, 1_048_626_432),
        ("Qwen3.5-27B-DFlash", 58, 1_730_213_120),
        ("Qwen3.6-27B-DFlash", 58, 1_730_213_120),
        ("Qwen3.6-35B-A3B-DFlash", 69, 385_906_176),
        ("Qwen3.8-27B-DFlash2", 81, 1_924_404_480),
        ("Muse-Glimmer-30B-DFlash2", 81, None),
    ],
)
def test_published_drafters_are_read_and_have_their_tensors(name, tensors, parameters) -> None:
    config = PUBLISHED[name]
    component = describe(config, facts(config))
    assert component.name == ("dflash2" if name.endswith("2") else "dflash")
    assert component.target == "text"
    assert component.config == config
    assert len(component.parameters) == tensors
    assert len({p.name for p in component.parameters}) == tensors
    if parameters is not None:
        assert sum(math.prod(p.shape) for p in component.parameters) == parameters


def test_what_is_read_from_published_files() -> None:
    read = {name: DFlashConfig.from_json(config) for name, config in PUBLISHED.items()}
    assert read["Qwen3-8B-DFlash-b16"].taps == (1, 9, 17, 25, 33)
    assert read["Qwen3-8B-DFlash-b16"].rope_theta == 1e6
    assert read["Qwen3.5-4B-DFlash"].rope_theta == 1e7
    assert read["Qwen3.5-4B-DFlash"].layers == (FREE,) * 5
    assert read["Qwen3.6-27B-DFlash"].layers == (LayerPattern(True, 2048),) * 4 + (FREE,)
    assert read["Qwen3.6-35B-A3B-DFlash"].block_size == 16
    assert len(read["Qwen3.6-35B-A3B-DFlash"].taps) == 8
    second = read["Qwen3.8-27B-DFlash2"]
    assert second.layers == (LayerPattern(False, 2048),) * 5
    assert (second.block_size, second.mask_token_id) == (8, 248070)
    assert (second.conv.kernel_size, second.conv.group_size) == (2, 16)
    assert (second.selector.rank, second.selector.top_k) == (256, 16)
    muse = read["Muse-Glimmer-30B-DFlash2"]
    assert (muse.logit_softcap, muse.output_multiplier) == (20, 0.196)
    assert second.logit_softcap is None
    assert second.output_multiplier == 1


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, (LayerPattern(True, 32), FREE)),
        ({"is_causal": True}, (LayerPattern(True, 32), CAUSAL)),
        ({"is_causal": False}, (LayerPattern(False, 32), FREE)),
        ({"dflash_config.causal": True}, (LayerPattern(True, 32), CAUSAL)),
        ({"is_causal": False, "dflash_config.causal": True}, (LayerPattern(False, 32), FREE)),
        ({"sliding_window_non_causal": True}, (LayerPattern(False, 32), FREE)),
        ({"layer_types": [FULL, FULL]}, (FREE, FREE)),
        ({"layer_types": ..., "use_sliding_window": False}, (FREE, FREE)),
    ],
)
def test_which_rows_a_layer_sees(changes, layers) -> None:
    config = tiny()
    for path, value in changes.items():
        config = changed(config, path, value)
    assert DFlashConfig.from_json(config).layers == layers


def test_taps_that_count_the_embedding_are_moved_by_one() -> None:
    config = changed(tiny(), "dflash_config.target_layer_ids", ...)
    config = changed(config, "aux_hidden_state_layer_ids", [1, 4])
    assert DFlashConfig.from_json(config).taps == (0, 3)
    assert "target_layer_ids" in refusal("aux_hidden_state_layer_ids", [1, 3])


def test_keys_may_stand_in_both_places_if_they_agree() -> None:
    assert DFlashConfig.from_json(changed(tiny(), "dflash_config.block_size", 8)).block_size == 8
    assert "dflash_config.block_size: 16 contradicts config.json.block_size" in refusal(
        "dflash_config.block_size", 16
    )
    assert "rope_parameters.rope_theta" in refusal("rope_parameters", {"rope_theta": 5})


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("surprise", 1, "config.json.surprise: unknown key"),
        ("dflash_config.surprise", 1, "config.json.dflash_config.surprise: unknown key"),
        ("rope_parameters", {"rope_theta": 10_000, "factor": 2}, "rope_parameters.factor"),
        ("rope_parameters", {"rope_theta": 10_000, "rope_type": "yarn"}, "'yarn'"),
        ("rope_scaling", {"rope_type": "linear"}, "'linear'"),
        ("block_size", ..., "block_size: is missing"),
        ("block_size", 1, "block_size"),
        ("dflash_config", ..., "dflash_config: is missing"),
        ("dflash_config.mask_token_id", 512, "mask_token_id"),
        ("dflash_config.mask_token_id", ..., "mask_token_id: is missing"),
        ("dflash_config.target_layer_ids", [0, 4], "target_layer_ids[1]"),
        ("dflash_config.target_layer_ids", [2, 2], "names a layer twice"),
        ("dflash_config.target_layer_ids", [], "is empty"),
        ("dflash_config.conv_kernel_size", 2, f"belongs to {V2}"),
        ("dflash_config.use_swa", True, "use_swa"),
        ("dflash_config.attention_sink_bias", True, "attention_sink_bias"),
        ("dflash_config.attention_value_scale", 0.5, "attention_value_scale"),
        ("sample_from_anchor", True, "sample_from_anchor"),
        ("draft_vocab_size", 128, "draft_vocab_size: 128"),
        ("attention_bias", True, "attention_bias"),
        ("hidden_act", "gelu", "hidden_act"),
        ("model_type", "llama", "model_type"),
        ("architectures", ["Qwen3ForCausalLM"], "Qwen3ForCausalLM is no DFlash drafter"),
        ("layer_types", [FULL], "has 1 entries for 2 layers"),
        ("layer_types", [FULL, "linear_attention"], "layer_types[1]"),
        ("layer_types", ..., "use_sliding_window"),
        ("use_sliding_window", False, "has sliding layers"),
        ("sliding_window", None, "sliding_window: is missing"),
        ("num_key_value_heads", 3, "does not divide"),
        ("head_dim", 31, "is odd"),
        ("rope_theta", ..., "rope_theta: is missing"),
    ],
)
def test_refused_by_name(path, value, named) -> None:
    assert named in refusal(path, value)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("dflash_config.selector_rank", ..., "selector_rank: is missing"),
        ("dflash_config.conv_kernel_size", 4, "conv_kernel_size: 4"),
        ("dflash_config.conv_group_size", 48, "does not divide hidden_size 64"),
        ("dflash_config.selector_top_k", 0, "selector_top_k"),
        ("dflash_config.output_multiplier", 0, "output_multiplier: is 0"),
    ],
)
def test_refused_of_the_second_generation(path, value, named) -> None:
    assert named in refusal(path, value, tiny(second=True))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": 128}, "hidden_size: 64, the target has 128"),
        ({"vocab_size": 1024}, "vocab_size: 512, the target has 1024"),
        ({"layers": 8}, "num_target_layers: 4, the target has 8"),
    ],
)
def test_a_drafter_of_another_target_is_refused(changes, named) -> None:
    with pytest.raises(ArtifactError, match="give the target's own drafter") as caught:
        describe(tiny(), facts(tiny(), **changes))
    assert named in str(caught.value)


def test_taps_are_held_against_the_target_when_the_file_does_not_say_its_layers() -> None:
    config = changed(tiny(), "num_target_layers", ...)
    config = changed(config, "dflash_config.target_layer_ids", [0, 6])
    with pytest.raises(ArtifactError, match="names layer 6, the target has 4"):
        describe(config, facts(tiny()))
    assert SLIDING in config["layer_types"]
    assert config["architectures"] == [V1]
