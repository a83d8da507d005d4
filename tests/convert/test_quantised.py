"""Quantised recipes: what becomes which format, what uses permit, what errors are recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ninfer_core.artifact import (
    ActivationPolicy,
    Binder,
    ConversionError,
    open_artifact,
    summarise,
    verify,
)
from ninfer_core.testing.artifact_mutations import seal, unseal
from ninfer_qwen3_5.convert import convert_checkpoint

FP8, Q4 = "fp8_e4m3fn_row_bf16", "q4_g64_fp16"
MATRICES = ("qkv_proj", "o_proj", "in_proj", "out_proj", "gate_up_proj", "down_proj", "mtp.fc")
TABLES = ("text.embed_tokens.weight", "text.lm_head.weight")


def formats_of(path: Path) -> dict[str, str]:
    return {tensor.id: tensor.format for tensor in summarise(open_artifact(path)).tensors}


@pytest.mark.parametrize(
    ("options", "matrices", "tables"),
    [
        ({"recipe": FP8}, FP8, FP8),
        ({"recipe": "fp8", "head": "bf16"}, FP8, "bf16"),
        ({"recipe": Q4}, Q4, FP8),
        ({"recipe": "q4", "head": "q4"}, Q4, Q4),
        ({"recipe": "q4", "head": "fp32"}, Q4, "fp32"),
        ({"recipe": "bf16", "head": FP8}, "bf16", FP8),
    ],
)
def test_matrices_and_tables_are_quantised_and_nothing_else(
    checkpoint, out: Path, options, matrices, tables
) -> None:
    source = checkpoint()
    source.add_mtp()
    report = convert_checkpoint(source.path, out, **options)
    found = formats_of(out)
    for name, stored in found.items():
        if name.removesuffix(".weight").endswith(MATRICES):
            assert (name, stored) == (name, matrices)
        elif name in TABLES:
            assert (name, stored) == (name, tables)
        else:
            assert stored in ("bf16", "fp32")
    assert found["text.layers.0.linear_attn.conv1d.weight"] == "bf16"
    assert found["text.layers.0.linear_attn.A_log"] == "fp32"
    assert {"text.norm.weight", "text.layers.3.self_attn.o_proj.weight", "mtp.fc.weight"} <= set(
        found
    )
    assert verify(open_artifact(out)).ok
    long_name = {"fp8": FP8, "q4": Q4}.get(options["recipe"], options["recipe"])
    head = f", head {tables}" if "head" in options else ""
    assert report.recipe == open_artifact(out).directory.provenance.recipe == long_name + head


def test_a_tied_head_is_the_embedding(saved, out: Path) -> None:
    convert_checkpoint(saved("tied"), out, recipe="q4")
    artifact = open_artifact(out)
    assert formats_of(out)["text.embed_tokens.weight"] == FP8
    assert artifact.use("text.embed_tokens.weight", "final_hidden") is not None
    assert "text.lm_head.weight" not in formats_of(out)


@pytest.mark.parametrize(
    ("recipe", "permitted"),
    [("fp8", ActivationPolicy.ALLOW_A8), ("q4", ActivationPolicy.A16_ONLY)],
)
def test_only_products_with_fp8_matrices_permit_a8(saved, out: Path, recipe, permitted) -> None:
    convert_checkpoint(saved("untied"), out, recipe=recipe)
    for use in open_artifact(out).directory.uses:
        table = use.parameter in TABLES
        assert use.activation is (ActivationPolicy.A16_ONLY if table else permitted)


@pytest.mark.parametrize(("recipe", "limit"), [("fp8", 2**-4), ("q4", 0.25)])
def test_the_recorded_errors_are_those_of_the_stored_values(
    saved, out: Path, recipe, limit
) -> None:
    from safetensors.torch import load_file

    report = convert_checkpoint(saved("untied"), out, recipe=recipe)
    source = load_file(saved("untied") / "model.safetensors")
    artifact = open_artifact(out)
    binder = Binder(artifact)
    members = [("gate_proj", (96, 64)), ("up_proj", (96, 64))]
    prefix = "layers.0.mlp."
    fused = binder.stacked([(f"text.{prefix}{n}.weight", s) for n, s in members], use="ffn_input")
    assert fused.contiguous
    original = torch.cat([source[f"model.{prefix}{n}.weight"] for n, _ in members]).double()
    error = fused.to_torch().double() - original
    quality = artifact.tensor(f"text.{prefix}gate_up_proj.weight").quality
    rms = float(error.norm() / original.norm())
    assert quality.rms_relative_error == pytest.approx(rms, rel=1e-4)
    assert quality.max_abs_error == pytest.approx(float(error.abs().max()), rel=1e-4)
    assert 0 < rms < limit
    assert report.max_rms_relative_error == max(
        tensor.rms_relative_error for tensor in summarise(artifact).tensors
    )


def test_equal_checkpoints_give_equal_bytes_in_blocks_of_any_size(
    saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ninfer_core.artifact.convert import encode

    convert_checkpoint(saved("untied"), tmp_path / "a.ninfer", recipe="q4")
    monkeypatch.setattr(encode, "BLOCK_ELEMENTS", 3000)
    convert_checkpoint(saved("untied"), tmp_path / "b.ninfer", recipe="q4")
    assert (tmp_path / "a.ninfer").read_bytes() == (tmp_path / "b.ninfer").read_bytes()


def test_values_beyond_the_scales_are_refused_by_name(checkpoint, out: Path) -> None:
    source = checkpoint()
    name = "model.layers.1.mlp.down_proj.weight"
    tensor = source.tensors[name]
    tensor[3, 5] = 1e6
    source.change(name, tensor)
    with pytest.raises(ConversionError, match="overflows the fp16 scale") as caught:
        convert_checkpoint(source.path, out, recipe="q4")
    assert caught.value.field == name
    assert list(out.parent.iterdir()) == []


def changed(path: Path, object_id: str, plane: int, data: bytes, *, sealed: bool) -> Path:
    """A copy with ``data`` over the start of a plane; ``sealed`` makes the hashes fit again."""
    import hashlib

    artifact = open_artifact(path)
    entry = artifact.tensor(object_id)
    weight_format = artifact.formats.get(entry.format, object_id)
    at = entry.offset + weight_format.planes(entry.shape, entry.layout)[plane].offset
    directory, payload = unseal(path.read_bytes())
    damaged = bytearray(payload)
    damaged[at : at + len(data)] = data
    if sealed:
        [record] = [o for o in directory["objects"] if o["id"] == object_id]
        stored = damaged[entry.offset : entry.offset + entry.bytes]
        record["sha256"] = hashlib.sha256(stored).hexdigest()
    target = path.with_name("damaged.ninfer")
    target.write_bytes(seal(json.loads(json.dumps(directory)), bytes(damaged)))
    return target


@pytest.mark.parametrize(
    ("data", "sealed", "said"),
    [
        (b"\x12\x34", False, "do not match the recorded SHA-256"),
        (b"\xff\xff", True, "values that are not finite"),
        (b"\x00\xb8", True, "has negative scales"),
        (b"\x00\x00", True, "has codes other than zero under a scale of zero"),
    ],
)
@pytest.mark.parametrize("recipe", ["fp8", "q4"])
def test_changed_scales_are_reported(saved, out: Path, recipe, data, sealed, said) -> None:
    convert_checkpoint(saved("untied"), out, recipe=recipe)
    name = "text.layers.0.mlp.down_proj.weight"
    damaged = changed(out, name, 1, data, sealed=sealed)
    problems = verify(open_artifact(damaged)).problems
    assert {problem.object for problem in problems} == {name}
    assert any(said in problem.message for problem in problems)
