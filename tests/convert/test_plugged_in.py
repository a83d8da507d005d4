"""The seams: a packed format with planes, its recipe, and the guards that it must pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from ninfer_core.artifact import (
    ActivationPolicy,
    ArtifactError,
    Binder,
    ConversionError,
    FormatRegistry,
    open_artifact,
    verify,
)
from ninfer_core.artifact.buffers import tensor_bytes, tensor_view
from ninfer_core.artifact.convert import (
    ConvertOptions,
    ParameterRole,
    Recipe,
    RecipeBook,
    Storage,
    convert,
)
from ninfer_core.artifact.formats import BUILTIN_FORMATS, Plane
from ninfer_qwen3_5.convert import CONVERTER

ONLY = {"Qwen3_5ForCausalLM": CONVERTER}


@dataclass(frozen=True)
class Int8Rows:
    """Symmetric int8 codes [rows, width], then one fp32 scale per row, 256-byte aligned."""

    name: str = "int8_rows"
    layouts: tuple[str, ...] = ("codes_then_scales",)
    rms_error_limit: float = 0.02
    row_block: int | None = 1
    torch_dtype: str | None = None
    smallest: float = 0.0

    def planes(self, shape, layout):
        rows, codes = math.prod(shape[:-1]), math.prod(shape)
        return (Plane("codes", 0, codes), Plane("scales", -(-codes // 256) * 256, 4 * rows))

    def encode(self, values, layout):
        values = values.float()
        peak = values.abs().amax(dim=1, keepdim=True)
        scales = torch.where(peak < self.smallest, torch.zeros_like(peak), peak / 127)
        codes = torch.where(scales > 0, values / scales, 0.0).round().to(torch.int8)
        return tensor_bytes(codes), tensor_bytes(scales)

    def decode(self, storage, shape, layout, rows):
        start, stop = rows
        width = shape[-1]
        codes = tensor_view(storage, torch.int8, start * width, (stop - start) * width)
        first = self.planes(shape, layout)[1].offset // 4
        scales = tensor_view(storage, torch.float32, first + start, stop - start)
        return codes.reshape(-1, width).float() * scales[:, None]


def apply(builder) -> None:
    for parameter in builder.parameters:
        packed = parameter.role is ParameterRole.MATRIX
        storage = Storage("int8_rows", "codes_then_scales") if packed else Storage("fp32")
        builder.assign(parameter, storage)
        for name in parameter.inputs:
            builder.use(parameter, name, ActivationPolicy.ALLOW_A8)
    for group in builder.groups:
        builder.group(group)


RECIPES = RecipeBook([Recipe("int8", "matrices in int8 rows", apply)])


def convert_packed(source, out: Path, packed: Int8Rows) -> FormatRegistry:
    formats = FormatRegistry([*BUILTIN_FORMATS, packed])
    convert(
        source.path,
        out,
        architectures=ONLY,
        options=ConvertOptions(recipe="int8"),
        formats=formats,
        recipes=RECIPES,
    )
    return formats


@pytest.mark.parametrize("row_block", [1, 4, None])
def test_a_packed_format_is_written_and_read_back(checkpoint, out: Path, row_block) -> None:
    source = checkpoint()
    packed = Int8Rows(row_block=row_block)
    formats = convert_packed(source, out, packed)
    artifact = open_artifact(out, formats)
    assert verify(artifact).problems == ()
    binder = Binder(artifact)
    members = [(f"text.layers.0.mlp.{part}_proj.weight", (96, 64)) for part in ("gate", "up")]
    fused = binder.stacked(members, use="ffn_input")
    assert fused.contiguous
    assert fused.activation is ActivationPolicy.ALLOW_A8
    source_rows = torch.cat(
        [source.tensors[f"model.layers.0.mlp.{part}_proj.weight"] for part in ("gate", "up")]
    )
    step = source_rows.abs().amax(dim=1, keepdim=True) / 127
    assert ((fused.to_torch() - source_rows).abs() <= 0.501 * step).all()
    up = binder.tensor(*members[1])
    assert torch.equal(up.to_torch(), fused.to_torch()[96:])
    assert up.views[0].rows == (96, 192)
    quality = artifact.tensor("text.layers.0.mlp.gate_up_proj.weight").quality
    error = (fused.to_torch() - source_rows).norm() / source_rows.norm()
    assert quality.rms_relative_error == pytest.approx(float(error), rel=1e-4)


def test_every_way_of_cutting_rows_gives_the_same_bytes(checkpoint, tmp_path: Path) -> None:
    source = checkpoint()
    for name, row_block in (("a", 1), ("b", None)):
        convert_packed(source, tmp_path / f"{name}.ninfer", Int8Rows(row_block=row_block))
    assert (tmp_path / "a.ninfer").read_bytes() == (tmp_path / "b.ninfer").read_bytes()


def test_rows_that_collapse_in_encoding_are_refused(checkpoint, out: Path) -> None:
    source = checkpoint()
    name = "model.layers.1.linear_attn.in_proj_qkv.weight"
    tensor = source.tensors[name]
    tensor[32:64] *= 1e-6
    source.change(name, tensor)
    with pytest.raises(ConversionError, match="32 of 128 rows collapse to zero") as caught:
        convert_packed(source, out, Int8Rows(smallest=1e-5))
    assert caught.value.field == "text.layers.1.linear_attn.in_proj_qkv.weight"
    assert list(out.parent.iterdir()) == []


def test_an_encoding_beyond_its_error_limit_is_refused(checkpoint, out: Path) -> None:
    with pytest.raises(ConversionError, match=r"exceeds the limit 0\.0001 of int8_rows"):
        convert_packed(checkpoint(), out, replace(Int8Rows(), rms_error_limit=1e-4))
    assert list(out.parent.iterdir()) == []


def test_a_recipe_for_a_format_nobody_registered_is_refused(checkpoint, out: Path) -> None:
    with pytest.raises(ArtifactError, match="unknown format 'int8_rows'"):
        convert(
            checkpoint().path,
            out,
            architectures=ONLY,
            options=ConvertOptions(recipe="int8"),
            recipes=RECIPES,
        )
    assert list(out.parent.iterdir()) == []
