"""Planes of bound matrices: zero-copy, stacked by rows, one format to a fused call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ninfer_core.artifact import (
    ArtifactDraft,
    ArtifactError,
    ArtifactWriter,
    Binder,
    QualityBlock,
    TensorDraft,
    open_artifact,
)
from ninfer_core.artifact.formats import BF16, FP8_ROW, Q4_GROUPS, WeightFormat
from ninfer_core.artifact.model import Binding, BindingPart, Component, Provenance

K = 130
ROWS = {"a": 2, "b": 3, "c": 1}
SOUND = QualityBlock("float32", True, 0.0, 0.0, 0.0, 0.0, 0.0)


def values_of(name: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(ord(name))
    return torch.randn(ROWS[name], K, generator=generator)


def write(path: Path, parents: dict[str, WeightFormat]) -> None:
    """Parameters text.a, text.b, text.c as rows of the parents that their letters name."""
    objects, bindings, encoded = [], [], {}
    for letters, fmt in parents.items():
        values, layout = torch.cat([values_of(name) for name in letters]), fmt.layouts[0]
        objects.append(TensorDraft(f"text.{letters}", (len(values), K), fmt.name, layout))
        planes = fmt.planes((len(values), K), layout)
        encoded[f"text.{letters}"] = list(zip(planes, fmt.encode(values, layout), strict=True))
        first = 0
        for name in letters:
            part = BindingPart(f"text.{letters}", first, ROWS[name] * K)
            bindings.append(Binding(f"text.{name}", (ROWS[name], K), (part,)))
            first += ROWS[name] * K
    draft = ArtifactDraft(
        name="planes",
        components=(Component("text", {}, None, {}),),
        objects=tuple(objects),
        bindings=tuple(bindings),
        uses=(),
        provenance=Provenance("test", "hand", ()),
    )
    with ArtifactWriter(path, draft) as writer:
        for object_id, planes in encoded.items():
            end = 0
            for plane, data in planes:
                writer.write(object_id, end, bytes(plane.offset - end))
                writer.write(object_id, plane.offset, data)
                end = plane.offset + plane.bytes
            writer.finish(object_id, SOUND)
        writer.publish()


@pytest.fixture
def bound(tmp_path: Path):
    """The named parameters of an artifact with such parents, stacked."""

    def make(parents: dict[str, WeightFormat], names: str):
        write(tmp_path / "planes.ninfer", parents)
        binder = Binder(open_artifact(tmp_path / "planes.ninfer"))
        return binder.stacked([(f"text.{name}", (ROWS[name], K)) for name in names])

    return make


SHAPES = {
    FP8_ROW.name: {"codes": (torch.float8_e4m3fn, (K,)), "scales": (torch.bfloat16, ())},
    Q4_GROUPS.name: {"codes": (torch.uint8, (128,)), "scales": (torch.float16, (4,))},
}


def bits(plane: torch.Tensor) -> torch.Tensor:
    return plane.contiguous().reshape(len(plane), -1).view(torch.uint8)


@pytest.mark.parametrize("fmt", [FP8_ROW, Q4_GROUPS])
@pytest.mark.parametrize("names", ["abc", "b", "bc", "ca"])
@pytest.mark.parametrize("parents", [("abc",), ("a", "b", "c"), ("ab", "c")])
def test_planes_are_the_rows_of_their_parents(bound, fmt, names, parents) -> None:
    encoded = bound(dict.fromkeys(parents, fmt), names).encoded()
    expected = fmt.encode(torch.cat([values_of(name) for name in names]), fmt.layouts[0])
    rows = sum(ROWS[name] for name in names)
    assert (encoded.format, encoded.rows, encoded.columns) == (fmt.name, rows, K)
    assert list(encoded.planes) == list(SHAPES[fmt.name])
    for (name, plane), data in zip(encoded.planes.items(), expected, strict=True):
        dtype, row_shape = SHAPES[fmt.name][name]
        assert (plane.dtype, tuple(plane.shape)) == (dtype, (rows, *row_shape))
        assert plane.is_contiguous()
        assert bytes(bits(plane).numpy().data) == bytes(data)


@pytest.mark.parametrize("fmt", [BF16, FP8_ROW, Q4_GROUPS])
def test_neighbours_are_not_copied(bound, fmt) -> None:
    tensor = bound({"abc": fmt}, "bc")
    (view,) = tensor.views
    start = torch.frombuffer(view.storage, dtype=torch.uint8).data_ptr()
    for plane, stored in zip(tensor.encoded().planes.values(), view.planes, strict=True):
        assert plane.data_ptr() == start + stored.offset + 2 * stored.bytes // 6


def test_plain_formats_have_one_plane(bound) -> None:
    encoded = bound({"a": BF16, "b": BF16, "c": BF16}, "ab").encoded()
    assert (encoded.format, list(encoded.planes)) == ("bf16", ["weight"])
    expected = torch.cat([values_of("a"), values_of("b")]).to(torch.bfloat16)
    assert torch.equal(encoded.planes["weight"], expected)


def test_mixed_formats_are_refused(bound) -> None:
    with pytest.raises(ArtifactError, match="formats bf16, q4_g64_fp16") as caught:
        bound({"a": Q4_GROUPS, "bc": BF16}, "ab").encoded()
    assert caught.value.field == "text.a + text.b"


def test_a_packed_view_that_cuts_a_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "planes.ninfer"
    write(path, {"abc": FP8_ROW})
    artifact = open_artifact(path)
    binder = Binder(artifact)
    whole = binder.tensor("text.b", (3, K))
    (view,) = whole.views
    cut = type(view)(view.parent, view.first + 1, K, view.storage, view.format)
    with pytest.raises(ArtifactError, match=r"does not consist of whole rows of 'text\.abc'"):
        type(whole)("text.b", (1, K), (cut,)).encoded()


class Undescribed:
    """fp8 by another name, with planes that do not say what they hold."""

    name, layouts, row_block, torch_dtype = "undescribed", FP8_ROW.layouts, 1, None
    rms_error_limit = FP8_ROW.rms_error_limit

    @staticmethod
    def planes(shape, layout):
        return tuple(
            type(plane)(plane.name, plane.offset, plane.bytes)
            for plane in FP8_ROW.planes(shape, layout)
        )

    encode = staticmethod(FP8_ROW.encode)
    decode = staticmethod(FP8_ROW.decode)


def test_planes_without_a_dtype_arrive_decoded(bound) -> None:
    fp8 = bound({"abc": FP8_ROW}, "ab")
    views = tuple(
        type(view)(view.parent, view.first, view.count, view.storage, Undescribed())
        for view in fp8.views
    )
    encoded = type(fp8)(fp8.parameter, fp8.shape, views).encoded()
    assert (encoded.format, list(encoded.planes)) == ("fp32", ["weight"])
    assert torch.equal(encoded.planes["weight"], fp8.to_torch())
