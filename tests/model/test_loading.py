"""Loading text parameters: every one is placed, shared tables once, damage is found in time."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest
import torch

from ninfer_core.artifact import ArtifactError, open_artifact
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_core.ops.reference import OPS
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.convert import convert_checkpoint
from ninfer_qwen3_5.load.source import ArtifactSource
from ninfer_qwen3_5.load.text import load_text, text_parameters

CHECKPOINT = Path(__file__).parents[2] / "plugins" / "demo_model" / "checkpoint"


@pytest.fixture(scope="module", params=["bf16", "q4"])
def artifact(request, tmp_path_factory):
    """The demo checkpoint, whose head is tied, converted."""
    path = tmp_path_factory.mktemp("load") / "demo.ninfer"
    convert_checkpoint(CHECKPOINT, path, recipe=request.param)
    with open_artifact(path) as opened:
        yield opened


def config_of(artifact) -> TextConfig:
    return TextConfig.from_json(artifact.component("text").config)


class Copies:
    """A memory of its own, as a device's would be."""

    def __init__(self) -> None:
        self.matrices: dict[str, WeightMatrix] = {}
        self.vectors: dict[str, torch.Tensor] = {}

    def matrix(self, name: str, weight: WeightMatrix) -> WeightMatrix:
        assert name not in self.matrices
        planes = {key: plane.clone() for key, plane in weight.planes.items()}
        self.matrices[name] = WeightMatrix(weight.format, weight.rows, weight.columns, planes)
        return self.matrices[name]

    def vector(self, name: str, values: torch.Tensor) -> torch.Tensor:
        assert name not in self.vectors
        self.vectors[name] = values.clone()
        return self.vectors[name]


def leaves(parameters) -> list[torch.Tensor]:
    found = [parameters.final_scale, parameters.inverse_frequencies, parameters.rope_axes]
    for layer in parameters.layers:
        found += [layer.input_scale, layer.post_scale]
        names = ("q_scale", "k_scale", "conv", "decay_rate", "dt_bias", "norm_scale")
        found += [getattr(layer.mixer, name) for name in names if hasattr(layer.mixer, name)]
    return found


def test_every_parameter_is_placed_and_equals_the_host_s(artifact) -> None:
    config, copies = config_of(artifact), Copies()
    placed = load_text(artifact, config, OPS, copies)
    host = load_text(artifact, config, OPS)
    assert {id(vector) for vector in leaves(placed)} == {id(v) for v in copies.vectors.values()}
    for ours, theirs in zip(leaves(placed), leaves(host), strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(placed.layers, host.layers, strict=True):
        for block, side in (("mixer", "inputs"), ("mlp", "output")):
            one, two = (getattr(getattr(layer, block), side) for layer in (ours, theirs))
            assert torch.equal(one.planes["weight"], two.planes["weight"])
    # Four matrices a layer, and one table: the head is tied.
    assert len(copies.matrices) == 4 * config.num_hidden_layers + 1
    assert placed.head is placed.embedding
    fused = "text.layers.0.mlp.gate_proj.weight + text.layers.0.mlp.up_proj.weight"
    assert (
        copies.matrices[fused].format
        == artifact.tensor("text.layers.0.mlp.gate_up_proj.weight").format
    )


def test_an_untied_head_bound_to_the_embedding_is_placed_once(artifact) -> None:
    class Untied(ArtifactSource):
        def matrix(self, prefix, shapes, use):
            names = {name.replace("lm_head", "embed_tokens"): s for name, s in shapes.items()}
            return super().matrix(prefix, names, use)

    config = dataclasses.replace(config_of(artifact), tie_word_embeddings=False)
    copies = Copies()
    parameters = text_parameters(Untied(artifact), config, OPS, copies)
    assert parameters.head is parameters.embedding
    assert "text.lm_head.weight" not in copies.matrices


def test_a_flipped_bit_is_refused_by_the_time_it_is_bound(artifact, tmp_path) -> None:
    data = bytearray(artifact.path.read_bytes())
    entry = artifact.tensor("text.layers.1.mlp.down_proj.weight")
    payload = len(data) - sum(file.bytes for file in artifact.directory.files)
    data[payload + entry.offset + 7] ^= 4
    path = tmp_path / "damaged.ninfer"
    path.write_bytes(data)
    threads = threading.active_count()
    with open_artifact(path) as damaged:
        for _ in range(2):
            with pytest.raises(ArtifactError, match="SHA-256") as caught:
                load_text(damaged, config_of(damaged), OPS)
            assert caught.value.field == f"object {entry.id!r}"
            assert threading.active_count() == threads
