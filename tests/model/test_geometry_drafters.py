"""Random DFlash drafters of a geometry: the published sizes, and engines that draft with them."""

from __future__ import annotations

import math

import pytest
import torch

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.device.cpu import open_device
from ninfer_core.draft_choice import target_facts
from ninfer_core.errors import NinferError
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.geometry.artifact import Geometry, write_geometry
from ninfer_qwen3_5.geometry.drafters import drafters_of
from ninfer_qwen3_5.geometry.source import GeometrySource, geometry_bytes
from ninfer_qwen3_5.geometry.table import SIZES, config_of
from ninfer_qwen3_5.load.device_residence import DeviceResidence
from ninfer_spec_dflash.config import DFlashConfig
from ninfer_spec_dflash.convert import describe
from ninfer_spec_dflash.fit import verdict
from tests.model.test_geometry import TINY

HIDDEN, INNER, VOCAB = 64, 96, 320


def drafter(second: bool) -> dict:
    """After the published ones, for ``TINY``."""
    published = drafters_of("27b")["dflash2" if second else "dflash"]
    nested = published["dflash_config"] | {"target_layer_ids": [0, 2], "mask_token_id": 310}
    if second:
        nested |= {"selector_rank": 16, "selector_top_k": 4}
    return published | {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_target_layers": 4,
        "dflash_config": nested,
    }


DRAFTERS = {"dflash": drafter(False), "dflash2": drafter(True)}


def described(name: str, config: dict, target: dict) -> tuple:
    facts = target_facts("Qwen3_5ForCausalLM", {"text": target, name: config})
    return describe(config, facts).parameters


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    made = tmp_path_factory.mktemp("geometry") / "tiny.ninfer"
    write_geometry(made, "tiny", TINY, Geometry("bf16", seed=3), 300, DRAFTERS)
    return made


def answered(path, spec, drafts, **options):
    options = EngineOptions(
        devices=("cpu",),
        plugins=("spec_dflash",) if spec else (),
        draft=spec,
        draft_tokens=drafts,
        max_context=128,
        max_concurrency=1,
        **options,
    )
    with Engine.open(path, options) as engine:
        asked = GenerationOptions(
            sampling=SamplingParams(temperature=0.0), max_new_tokens=40, ignore_eos=True
        )
        return engine.submit(PromptInput(token_ids=[1, 299, 7, 80]), asked).result()


@pytest.mark.parametrize("spec", ["dflash", "dflash2"])
def test_a_geometry_drafts_and_answers_as_without(path, spec) -> None:
    plain, drafted = answered(path, None, 0), answered(path, spec, 3)
    assert drafted.token_ids == plain.token_ids
    assert drafted.timings.drafted[0] > 0


def test_a_geometry_without_a_drafter_says_so(tmp_path) -> None:
    made = tmp_path / "bare.ninfer"
    write_geometry(made, "bare", TINY, Geometry("bf16"), 300)
    with pytest.raises(NinferError, match="the artifact has no DFlash drafter"):
        answered(made, "dflash", 3)


PARAMETERS = {
    # fc, norms, and five layers of (32 + 2 * 8) heads of 128, out again, gate, up and down.
    ("27b", "dflash"): 5 * 5120**2
    + 2 * 5120
    + 5 * ((48 + 32) * 128 * 5120 + 3 * 17408 * 5120 + 2 * 5120 + 2 * 128),
    ("9b", "dflash"): 5 * 4096**2
    + 2 * 4096
    + 5 * ((48 + 32) * 128 * 4096 + 3 * 12288 * 4096 + 2 * 4096 + 2 * 128),
}
# Two convolutions a layer (base and 4 x 320 rows), the selector's projection and two codebooks.
PARAMETERS["27b", "dflash2"] = (
    PARAMETERS["27b", "dflash"] + 5 * 2 * (4 * 5120 + 1280 * 5120) + 256 * 5120 + 2 * 248_320 * 256
)


@pytest.mark.parametrize(("size", "name"), PARAMETERS)
def test_parameters_of_the_published_drafters(size, name) -> None:
    made = described(name, drafters_of(size)[name], config_of(SIZES[size]))
    assert sum(math.prod(p.shape) for p in made) == PARAMETERS[size, name]


def test_the_27b_drafters_have_the_published_counts() -> None:
    """About 1.73 billion parameters; of DFlash2 1.93, in 81 tensors."""
    first, second = (drafters_of("27b")[name] for name in ("dflash", "dflash2"))
    target = config_of(SIZES["27b"])
    assert PARAMETERS["27b", "dflash"] == pytest.approx(1.73e9, rel=0.003)
    assert PARAMETERS["27b", "dflash2"] == pytest.approx(1.93e9, rel=0.003)
    assert len(described("dflash", first, target)) == 3 + 11 * 5
    assert len(described("dflash2", second, target)) == 81


@pytest.mark.parametrize("size", SIZES)
def test_drafters_fit_their_targets(size) -> None:
    """And every size has both or none."""
    configs = drafters_of(size)
    assert set(configs) == ({"dflash", "dflash2"} if size in ("9b", "27b") else set())
    for name, config in configs.items():
        read = DFlashConfig.from_json(config)
        assert read.component == name
        assert read.hidden_size == SIZES[size].hidden
        assert max(read.taps) < SIZES[size].layers == read.target_layers
        assert read.block_size == (8 if name == "dflash2" else 16)
        assert all(layer.causal is False for layer in read.layers)
        assert {layer.window for layer in read.layers} == {2048 if name == "dflash2" else None}
        facts = target_facts("Qwen3_5ForCausalLM", {"text": config_of(SIZES[size]), name: config})
        assert verdict(name, facts).ok


@pytest.mark.parametrize("recipe", ["bf16", "fp8", "q4"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_all_parameters_fit_the_arena_that_was_planned(recipe, name) -> None:
    config, parameters = TextConfig.from_json(TINY), described(name, DRAFTERS[name], TINY)
    geometry, components = Geometry(recipe), ("text", name)
    size = geometry_bytes(config, geometry, components, parameters)
    added = size - geometry_bytes(config, geometry)
    residence = DeviceResidence(open_device(0), size)
    source = GeometrySource(
        config, geometry, residence.take, torch.device("cpu"), components, parameters
    )
    for parameter in parameters:
        if parameter.inputs or "codebook" in parameter.name:
            use = parameter.inputs[0] if parameter.inputs else None
            source.matrix(name + ".", {parameter.name.partition(".")[2]: parameter.shape}, use)
        else:
            residence.take(parameter.name, parameter.shape, torch.float32)
            made = source.vector(parameter.name, parameter.shape)
            # Scales about 1; of a convolution's taps the row's own.
            middle = made if made.dim() == 1 else made[:, 0]
            assert abs(float(middle.mean()) - 1) < 0.1
            assert made.dim() == 1 or abs(float(made[:, 1].mean())) < 0.1
    taken = sum(extent.length for extent in residence.arena.layout().values())
    assert taken <= added <= taken + 512 * 2 * len(parameters) + (1 << 16)


def test_a_component_that_nobody_describes_is_refused() -> None:
    config = TextConfig.from_json(TINY)
    with pytest.raises(NinferError, match="a geometry has no component 'dflash'"):
        geometry_bytes(config, Geometry("bf16"), ("text", "dflash"))
