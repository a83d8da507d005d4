"""The binder: parameters and Uses to zero-copy views, with nothing missing and nothing left."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from ninfer_core.artifact import (
    ActivationPolicy,
    ArtifactError,
    Binder,
    FormatRegistry,
    open_artifact,
    verify,
)
from ninfer_core.artifact.formats import BF16, BUILTIN_FORMATS, Plane

GATE_UP = torch.tensor([0x3F80 + i for i in range(24)], dtype=torch.int16).view(torch.bfloat16)


@pytest.fixture
def binder(small: Path) -> Binder:
    return Binder(open_artifact(small))


def test_a_parameter_is_a_view_of_its_parent(binder: Binder) -> None:
    up = binder.tensor("text.up", (4, 4), use="hidden")
    assert up.to_torch().dtype == torch.bfloat16
    assert torch.equal(up.to_torch(), GATE_UP[8:].reshape(4, 4))
    assert up.activation is ActivationPolicy.A16_ONLY
    (view,) = up.views
    assert (view.parent.id, view.first, view.count) == ("text.gate_up", 8, 16)
    assert view.rows == (2, 6)
    assert view.planes == (Plane("values", 0, 48),)


def test_reading_copies_nothing(small: Path) -> None:
    artifact = open_artifact(small)
    binder = Binder(artifact)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gate = binder.tensor("text.gate", (2, 4)).to_torch()
        up = binder.tensor("text.up", (4, 4)).to_torch()
    assert up.data_ptr() - gate.data_ptr() == 16
    assert gate.data_ptr() % 256 == 0


def test_a_cast_is_a_copy_with_equal_values(binder: Binder) -> None:
    gate = binder.tensor("text.gate", (2, 4))
    assert torch.equal(gate.to_torch(torch.float32), gate.to_torch().float())


def test_sharing_is_visible_in_the_key(binder: Binder) -> None:
    gate, head = binder.tensor("text.gate", (2, 4)), binder.tensor("text.head", (2, 4))
    assert gate.key == head.key == (("text.gate_up", 0, 8),)
    assert gate.key != binder.tensor("text.up", (4, 4)).key


def test_stacking_neighbours_gives_one_view_and_the_strictest_policy(binder: Binder) -> None:
    fused = binder.stacked([("text.gate", (2, 4)), ("text.up", (4, 4))], use="hidden")
    assert fused.shape == (6, 4)
    assert fused.contiguous
    assert torch.equal(fused.to_torch(), GATE_UP.reshape(6, 4))
    assert fused.activation is ActivationPolicy.A16_ONLY
    assert [use.auxiliaries for use in fused.uses] == [{"divisor": "text.norm"}, {}]


def test_stacking_in_another_order_is_right_too(binder: Binder) -> None:
    fused = binder.stacked([("text.up", (4, 4)), ("text.gate", (2, 4))])
    assert not fused.contiguous
    rows = GATE_UP.reshape(6, 4)
    assert torch.equal(fused.to_torch(), torch.cat([rows[2:], rows[:2]]))


def test_stacking_different_row_shapes_is_refused(binder: Binder) -> None:
    with pytest.raises(ArtifactError, match="different row shapes"):
        binder.stacked([("text.gate", (2, 4)), ("text.norm", (3,))])


def test_a_missing_parameter_is_named(binder: Binder) -> None:
    with pytest.raises(ArtifactError, match=r"text\.down: is missing in small\.ninfer") as caught:
        binder.tensor("text.down", (4, 4))
    assert "convert the checkpoint again" in str(caught.value)


def test_a_wrong_shape_is_named_even_with_equal_element_count(binder: Binder) -> None:
    with pytest.raises(ArtifactError, match=r"has shape \[4, 4\], the model needs \[2, 8\]"):
        binder.tensor("text.up", (2, 8))


def test_a_missing_use_is_named(binder: Binder) -> None:
    with pytest.raises(ArtifactError, match="no use with input 'logits'"):
        binder.tensor("text.up", (4, 4), use="logits")


def test_leftovers_are_refused_per_component(binder: Binder) -> None:
    binder.stacked([("text.gate", (2, 4)), ("text.up", (4, 4))])
    binder.tensor("text.norm", (3,))
    with pytest.raises(ArtifactError, match=r"text\.head and 1 more"):
        binder.finish()
    binder.tensor("text.head", (2, 4))
    binder.tensor("text.ids", (2,))
    binder.finish()


def test_an_optional_component_must_be_carried(small: Path) -> None:
    artifact = open_artifact(small)
    with pytest.raises(ArtifactError, match="which carries text, mtp"):
        Binder(artifact, ("text", "vision"))
    both = Binder(artifact, ("mtp",))
    with pytest.raises(ArtifactError, match=r"mtp\.fc"):
        both.finish()


def test_a_format_nobody_registered_is_refused_at_its_consumer(redo) -> None:
    path = redo(lambda root: root["objects"][1].update(format="q9_g64"))
    binder = Binder(open_artifact(path))
    binder.tensor("text.up", (4, 4))
    with pytest.raises(
        ArtifactError, match=r"text\.norm: has the unknown format 'q9_g64'"
    ) as caught:
        binder.tensor("text.norm", (3,))
    assert "install the plug-in" in str(caught.value)


@dataclass(frozen=True)
class Halves:
    """A packed test format: bf16 stored at half its value, decodable by rows only."""

    name: str = "halves"
    layouts: tuple[str, ...] = ("contiguous_le_v1",)
    rms_error_limit: float = 0.0
    row_block: int | None = 1
    torch_dtype: str | None = None
    planes = staticmethod(BF16.planes)
    encode = staticmethod(BF16.encode)

    @staticmethod
    def decode(storage, shape, layout, rows):
        return 2 * BF16.decode(storage, shape, layout, rows)


def test_a_plugged_in_format_is_decoded_through_its_reference(redo) -> None:
    path = redo(lambda root: root["objects"][0].update(format="halves"))
    formats = FormatRegistry([*BUILTIN_FORMATS, Halves()])
    binder = Binder(open_artifact(path, formats), formats=formats)
    values = binder.tensor("text.up", (4, 4)).to_torch()
    assert values.dtype == torch.float32
    assert torch.equal(values, 2 * GATE_UP[8:].reshape(4, 4).float())


def test_a_view_that_cuts_a_row_of_a_packed_parent_decodes_right(redo) -> None:
    def edit(root):
        root["objects"][0]["format"] = "halves"
        root["bindings"][0] = {
            "parameter": "text.gate",
            "shape": [7],
            "parts": [{"object": "text.gate_up", "first": 5, "count": 7}],
        }

    formats = FormatRegistry([*BUILTIN_FORMATS, Halves()])
    gate = Binder(open_artifact(redo(edit), formats), formats=formats).tensor("text.gate", (7,))
    assert gate.views[0].rows is None
    assert torch.equal(gate.to_torch(), 2 * GATE_UP[5:12].float())


def test_policies_meet_in_the_strictest() -> None:
    a16, a8, a4 = ActivationPolicy
    assert a4.permitted == ("A16", "A8", "A4")
    assert a16.permitted == ("A16",)
    assert ActivationPolicy.meet([a4, a8]) is a8
    assert ActivationPolicy.meet([a4, a16, a8]) is a16
    assert ActivationPolicy.meet([]) is a16


def test_a_format_registered_after_opening_is_still_checked(redo) -> None:
    path = redo(lambda root: root["objects"][0].update(format="halves", shape=[7, 4]))
    artifact = open_artifact(path)
    formats = FormatRegistry([*BUILTIN_FORMATS, Halves()])
    with pytest.raises(ArtifactError, match=r"text\.up\.bytes: 48, but halves .* takes 56"):
        Binder(artifact, formats=formats).tensor("text.up", (4, 4))
    (problem,) = verify(artifact, formats).problems
    assert "takes 56" in problem.message
    with pytest.raises(ArtifactError, match="takes 56"):
        open_artifact(path, formats)
