"""The committed drafters: configuration, tensors, sizes, and what they add to the artifact."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from ninfer_core.artifact import Binder, open_artifact
from ninfer_demo_model import source

KINDS = ("dflash", "dflash2")
MEGABYTE = 1_000_000


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def directory(kind, folder):
    return folder / f"checkpoint_{kind}"


@pytest.fixture
def tensors(directory):
    return load_file(directory / "model.safetensors")


def test_the_script_still_describes_it(training, kind, directory, tokenizer):
    from train.geometry import drafter_configuration

    stored = json.loads((directory / "config.json").read_text("utf-8"))
    assert drafter_configuration(kind, tokenizer.get_vocab_size()) == stored


def test_the_mask_is_a_row_that_stands_for_no_token(directory, checkpoint, tokenizer):
    stored = json.loads((directory / "config.json").read_text("utf-8"))
    mask = stored["dflash_config"]["mask_token_id"]
    assert tokenizer.get_vocab_size() <= mask < stored["vocab_size"]
    rows = load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"]
    assert rows[mask].float().norm() > 0


def test_names_shapes_and_dtypes(training, kind, directory, tensors):
    """11 tensors a layer and 3, as published; DFlash2's four a layer and three more."""
    from train.drafting import DRAFTERS

    config = json.loads((directory / "config.json").read_text("utf-8"))
    module = DRAFTERS[config["architectures"][0]](config)
    expected = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    assert {name: tuple(value.shape) for name, value in tensors.items()} == expected
    assert len(tensors) == (3 + 3 * 11 if kind == "dflash" else 3 + 3 * 15 + 3)
    assert {value.dtype for value in tensors.values()} == {torch.bfloat16}
    assert all(value.isfinite().all() for value in tensors.values())


def test_sizes(directory):
    files = {path.name: path.stat().st_size for path in directory.iterdir()}
    assert set(files) == {"config.json", "model.safetensors"}
    assert sum(files.values()) <= 2.1 * MEGABYTE


def test_nothing_is_where_it_began(kind, tensors):
    for name, value in tensors.items():
        rows = value.float()
        if value.dim() == 1:
            assert rows.std() > 1e-3, name
        if name.endswith("kernel_projection.weight"):
            assert rows.abs().mean() > 1e-3, name
    if kind == "dflash2":
        base = tensors["layers.1.attention_conv.base_kernel"].float()
        assert (base[:, 0] - 1).abs().mean() > 1e-3
        assert base[:, 1].abs().mean() > 1e-3


def test_the_artifact_holds_it_bit_for_bit(kind, directory, tensors):
    with open_artifact(source.ARTIFACT) as artifact:
        assert artifact.component_names == ("text", "mtp", "dflash", "dflash2")
        stored = json.loads((directory / "config.json").read_text("utf-8"))
        assert artifact.component(kind).config == stored
        binder = Binder(artifact, (kind,))
        for name, value in tensors.items():
            found = binder.tensor(f"{kind}.{name}", tuple(value.shape)).to_torch()
            assert torch.equal(found, value), name
        binder.finish()
        count = sum(math.prod(binding.shape) for binding in artifact.bindings(kind))
        assert count == sum(value.numel() for value in tensors.values())
