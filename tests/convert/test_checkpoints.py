"""Converted tensors against the checkpoint files themselves, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ninfer_core.artifact import ActivationPolicy, Binder, open_artifact, verify
from ninfer_qwen3_5.convert import CONVERTER, convert_checkpoint

ARCHITECTURES = {
    "Qwen3_5ForCausalLM": CONVERTER,
    "Qwen3_5ForConditionalGeneration": CONVERTER,
}


def source_tensors(directory: Path) -> dict[str, torch.Tensor]:
    files = sorted(directory.glob("*.safetensors"))
    return {name: value for path in files for name, value in load_file(path).items()}


def logical(name: str) -> str | None:
    """The logical name of a checkpoint tensor, None for vision: the naming rule, restated."""
    if name.startswith("model.visual."):
        return None
    if name.startswith("mtp."):
        return name
    return "text." + name.removeprefix("model.").removeprefix("language_model.")


def assert_equal_tensors(path: Path, expected: dict[str, torch.Tensor]) -> None:
    """Every expected parameter is bound, bit-equal, and nothing else is."""
    artifact = open_artifact(path)
    binder = Binder(artifact, artifact.component_names)
    for name, value in expected.items():
        stored = binder.tensor(name, tuple(value.shape)).to_torch()
        assert stored.dtype == value.dtype, name
        assert torch.equal(stored.view(torch.uint8), value.view(torch.uint8)), name
    binder.finish()
    assert verify(artifact).problems == ()


@pytest.mark.parametrize("kind", ["untied", "tied", "sharded", "vision"])
def test_fp32_keeps_every_bit(saved, kind: str, out: Path) -> None:
    source = saved(kind)
    report = convert_checkpoint(source, out, recipe="fp32")
    named = {logical(name): value for name, value in source_tensors(source).items()}
    named.pop(None, None)
    assert ("text.lm_head.weight" in named) == (kind != "tied")
    assert_equal_tensors(out, named)
    assert report.max_rms_relative_error == 0


def test_sharded_and_single_checkpoints_hold_the_same_values(saved, tmp_path: Path) -> None:
    assert len(list(saved("sharded").glob("*.safetensors"))) > 2
    for kind in ("sharded", "untied"):
        convert_checkpoint(saved(kind), tmp_path / f"{kind}.ninfer", recipe="fp32")
    one, many = (open_artifact(tmp_path / f"{k}.ninfer") for k in ("untied", "sharded"))
    for entry in one.directory.objects:
        assert many.object_bytes(entry.id) == one.object_bytes(entry.id)


@pytest.mark.parametrize("kind", ["untied", "vision"])
def test_either_class_may_use_either_prefix(checkpoint, kind: str, out: Path) -> None:
    source = checkpoint(kind)
    old, new = (
        ("model.language_model.", "model.")
        if kind == "vision"
        else ("model.", "model.language_model.")
    )
    before = source.tensors
    renamed = {
        new + name.removeprefix(old) if name.startswith(old) else name: value
        for name, value in before.items()
    }
    assert set(renamed) != set(before)
    source.set_tensors(renamed)
    convert_checkpoint(source.path, out, recipe="fp32")
    expected = {logical(name): value for name, value in before.items()}
    expected.pop(None, None)
    assert_equal_tensors(out, expected)


def test_bf16_rounds_matrices_and_keeps_vectors(saved, out: Path) -> None:
    report = convert_checkpoint(saved("untied"), out, recipe="bf16")
    expected = {
        logical(name): value if value.dim() == 1 else value.to(torch.bfloat16)
        for name, value in source_tensors(saved("untied")).items()
    }
    assert_equal_tensors(out, expected)
    worst = max(
        (value.to(torch.bfloat16).double() - value.double()).norm() / value.double().norm()
        for value in source_tensors(saved("untied")).values()
        if value.dim() > 1
    )
    assert report.max_rms_relative_error == pytest.approx(float(worst), rel=0.05)
    conv = open_artifact(out).tensor("text.layers.0.linear_attn.conv1d.weight").quality
    value = source_tensors(saved("untied"))["model.layers.0.linear_attn.conv1d.weight"]
    error = value.to(torch.bfloat16).double() - value.double()
    assert conv.rms_relative_error == pytest.approx(float(error.norm() / value.norm()), rel=1e-4)
    assert conv.max_abs_error == pytest.approx(float(error.abs().max()), rel=1e-5)


def test_a_bf16_checkpoint_keeps_its_fp32_tensors(checkpoint, out: Path) -> None:
    source = checkpoint()
    stored = {
        name: value
        if name.endswith(("A_log", "linear_attn.norm.weight"))
        else value.to(torch.bfloat16)
        for name, value in source.tensors.items()
    }
    source.set_tensors(stored)
    report = convert_checkpoint(source.path, out)
    assert_equal_tensors(out, {logical(name): value for name, value in stored.items()})
    assert report.recipe == "bf16"
    assert report.max_rms_relative_error == 0
    quality = open_artifact(out).tensor("text.layers.0.linear_attn.A_log").quality
    assert quality.source_dtype == "float32"


def test_fp16_tensors_are_widened_exactly_where_precision_is_kept(checkpoint, out: Path) -> None:
    source = checkpoint()
    stored = {name: value.to(torch.float16) for name, value in source.tensors.items()}
    source.set_tensors(stored)
    convert_checkpoint(source.path, out)
    expected = {
        logical(name): value.float() if value.dim() == 1 else value.to(torch.bfloat16)
        for name, value in stored.items()
    }
    assert_equal_tensors(out, expected)


def test_fused_projections_stand_side_by_side(saved, out: Path) -> None:
    convert_checkpoint(saved("untied"), out)
    binder = Binder(open_artifact(out))
    attention, gdn, mlp = (
        f"text.layers.{layer}." for layer in ("3.self_attn", "0.linear_attn", "0.mlp")
    )
    fused = [
        [(f"{attention}{p}_proj.weight", (n, 64)) for p, n in (("q", 256), ("k", 64), ("v", 64))],
        [
            (f"{gdn}in_proj_{p}.weight", (n, 64))
            for p, n in (("qkv", 128), ("z", 64), ("b", 4), ("a", 4))
        ],
        [(f"{mlp}{p}_proj.weight", (96, 64)) for p in ("gate", "up")],
    ]
    for members in fused:
        bound = binder.stacked(members)
        assert bound.contiguous
        apart = [binder.tensor(name, shape).to_torch() for name, shape in members]
        assert torch.equal(bound.to_torch(), torch.cat(apart))


def test_uses_name_the_inputs_of_every_projection(saved, out: Path) -> None:
    convert_checkpoint(saved("tied"), out)
    artifact = open_artifact(out)
    uses = {(use.parameter, use.input) for use in artifact.directory.uses}
    embedding = "text.embed_tokens.weight"
    assert {(embedding, "token_ids"), (embedding, "final_hidden")} <= uses
    assert ("text.layers.0.linear_attn.in_proj_a.weight", "mixer_input") in uses
    assert ("text.layers.3.self_attn.o_proj.weight", "mixer_output") in uses
    # 2 of the embedding; per layer 3 of the FFN; 5 per GDN mixer, 4 per attention mixer.
    assert len(uses) == 2 + 4 * 3 + 3 * 5 + 4
    policies = {use.activation for use in artifact.directory.uses}
    assert policies == {ActivationPolicy.A16_ONLY}


def test_mtp_is_carried_when_it_is_there(checkpoint, out: Path) -> None:
    source = checkpoint()
    source.add_mtp()
    report = convert_checkpoint(source.path, out, recipe="fp32")
    assert report.components == ("text", "mtp")
    artifact = open_artifact(out)
    assert len(list(artifact.bindings("mtp"))) == 15
    assert artifact.component("mtp").target == "text"
    assert_equal_tensors(out, {logical(n): v for n, v in source.tensors.items()})


def test_mtp_left_out_is_said(checkpoint, out: Path) -> None:
    source = checkpoint()
    source.add_mtp()
    report = convert_checkpoint(source.path, out, components=["text"])
    assert report.components == ("text",)
    assert len(report.not_carried) == 15
    assert "mtp: 15 tensors are not carried" in report.notes
    assert open_artifact(out).component_names == ("text",)


def test_mtp_named_by_the_config_alone_is_said(checkpoint, out: Path) -> None:
    source = checkpoint()
    source.configure(mtp_num_hidden_layers=1)
    report = convert_checkpoint(source.path, out)
    assert report.components == ("text",)
    assert "mtp: config.json names it, the checkpoint has no tensors" in report.notes


def test_mtp_tensors_without_a_layer_in_the_config_are_said(checkpoint, out: Path) -> None:
    source = checkpoint()
    source.add_mtp()
    source.configure(mtp_num_hidden_layers=None)
    report = convert_checkpoint(source.path, out)
    assert "mtp: 15 tensors are not carried" in report.notes


def test_vision_is_listed_as_not_carried(saved, out: Path) -> None:
    report = convert_checkpoint(saved("vision"), out)
    held = [name for name in source_tensors(saved("vision")) if ".visual." in name]
    assert list(report.not_carried) == sorted(held)
    assert f"vision: {len(held)} tensors are not carried" in report.notes
    assert open_artifact(out).architecture == "Qwen3_5ForConditionalGeneration"


def test_a_duplicate_head_is_ignored_when_tied(checkpoint, out: Path) -> None:
    source = checkpoint("tied")
    embedding = source.tensors["model.embed_tokens.weight"]
    source.change("lm_head.weight", embedding + 1)
    report = convert_checkpoint(source.path, out, recipe="fp32")
    assert report.ignored == ("lm_head.weight",)
    assert any("lm_head.weight: ignored, the head is tied" in note for note in report.notes)
    assert not Binder(open_artifact(out)).has("text.lm_head.weight")
