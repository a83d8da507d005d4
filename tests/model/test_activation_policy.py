"""What uses permit reaches the weights that ops multiply by, as the meet of all that are fused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ninfer_core.artifact import ActivationPolicy, open_artifact
from ninfer_core.device.cpu import open_device
from ninfer_core.ops.reference import OPS
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.convert import convert_checkpoint
from ninfer_qwen3_5.geometry.artifact import Geometry
from ninfer_qwen3_5.geometry.source import GeometrySource
from ninfer_qwen3_5.geometry.table import SIZES, config_of
from ninfer_qwen3_5.load.device_residence import DeviceResidence, resident_bytes
from ninfer_qwen3_5.load.source import ArtifactSource
from ninfer_qwen3_5.load.text import load_text

CHECKPOINT = Path(__file__).parents[2] / "plugins" / "demo_model" / "checkpoint"
MLP = "text.layers.1.mlp."


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """The demo checkpoint in each format, opened."""
    folder = tmp_path_factory.mktemp("policies")
    opened = {}
    for recipe in ("bf16", "fp8", "q4"):
        convert_checkpoint(CHECKPOINT, folder / f"{recipe}.ninfer", recipe=recipe)
        opened[recipe] = open_artifact(folder / f"{recipe}.ninfer")
    yield opened
    for artifact in opened.values():
        artifact.close()


@pytest.fixture
def uses(monkeypatch):
    """Replaces the policies of some uses of an artifact."""

    def change(artifact, policies) -> None:
        own = artifact.use

        def use(parameter, input_name):
            found = own(parameter, input_name)
            return replace(found, activation=policies.get(parameter, found.activation))

        monkeypatch.setattr(artifact, "use", use)

    return change


def prepared(artifact, residence=None) -> list[bool]:
    """Of each weight that the backend is given, whether it may round; the table comes first."""
    seen = []

    def prepare(weight):
        seen.append(weight.allow_a8)
        return OPS.prepare_linear(weight)

    config = TextConfig.from_json(artifact.component("text").config)
    rest = () if residence is None else (residence,)
    load_text(artifact, config, replace(OPS, prepare_linear=prepare), *rest)
    return seen


@pytest.mark.parametrize(("recipe", "permits"), [("bf16", False), ("fp8", True), ("q4", False)])
def test_matrices_carry_what_the_recipe_permits_and_tables_nothing(
    converted, recipe, permits
) -> None:
    table, *matrices = prepared(converted[recipe])
    assert not table
    assert len(matrices) == 32
    assert matrices == [permits] * 32


def test_it_survives_the_way_to_a_device(converted) -> None:
    artifact = converted["fp8"]
    config = TextConfig.from_json(artifact.component("text").config)
    device = open_device(0)
    try:
        residence = DeviceResidence(device, resident_bytes(artifact, config))
        assert prepared(artifact, residence) == [False, *[True] * 32]
    finally:
        device.close()


@pytest.mark.parametrize(
    ("policy", "permits"),
    [
        (ActivationPolicy.A16_ONLY, False),
        (ActivationPolicy.ALLOW_A8, True),
        (ActivationPolicy.ALLOW_A4, True),
    ],
)
def test_one_use_decides_for_the_call_that_fuses_it(converted, uses, policy, permits) -> None:
    artifact = converted["fp8"]
    uses(artifact, {f"{MLP}up_proj.weight": policy})
    source = ArtifactSource(artifact)
    shapes = {
        f"{name}.weight": artifact.binding(f"{MLP}{name}.weight").shape
        for name in ("gate_proj", "up_proj", "down_proj")
    }
    down = {"down_proj.weight": shapes.pop("down_proj.weight")}
    assert source.matrix(MLP, shapes, "ffn_input").allow_a8 is permits
    assert source.matrix(MLP, down, "ffn_inner").allow_a8


def test_elements_that_two_uses_share_are_never_rounded_more_than_each_permits(
    converted, uses
) -> None:
    artifact = converted["fp8"]
    name = "gate_proj.weight"
    shapes = {name: artifact.binding(MLP + name).shape}
    source = ArtifactSource(artifact)
    wide = source.matrix(MLP, shapes, "ffn_input")
    assert source.matrix(MLP, shapes, "ffn_input") is wide
    uses(artifact, {MLP + name: ActivationPolicy.A16_ONLY})
    narrow = source.matrix(MLP, shapes, "ffn_input")
    assert (wide.allow_a8, narrow.allow_a8) == (True, False)
    assert narrow.planes is wide.planes


@pytest.mark.parametrize(("recipe", "permits"), [("bf16", False), ("fp8", True), ("q4", False)])
def test_a_geometry_permits_what_its_recipe_would(recipe, permits) -> None:
    config = TextConfig.from_json(config_of(SIZES["0.8b"]))

    def take(name, shape, dtype):
        return torch.empty(shape, dtype=dtype)

    source = GeometrySource(config, Geometry(recipe), take, torch.device("cpu"))
    mlp = {f"{part}_proj.weight": (3584, 1024) for part in ("gate", "up")}
    assert source.matrix("text.layers.0.mlp.", mlp, "ffn_input").allow_a8 is permits
    gates = {f"in_proj_{part}.weight": (16, 1024) for part in "ba"}
    found = source.matrix("text.layers.0.linear_attn.", gates, "mixer_input")
    assert found.allow_a8 is permits
