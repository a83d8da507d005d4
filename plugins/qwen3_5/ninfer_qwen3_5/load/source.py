"""Where parameters come from, before they are placed and prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ninfer_core.artifact import Artifact, Binder
from ninfer_core.ops.contracts.values import WeightMatrix

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.artifact import BoundTensor

Shapes = Mapping[str, tuple[int, ...]]


class ParameterSource(Protocol):
    """Hands out each parameter once; names are logical (``text.layers.3.mlp.down_proj.weight``)."""

    def matrix(self, prefix: str, shapes: Shapes, use: str | None) -> WeightMatrix:
        """The matrices ``prefix + key``, stacked by rows in the order of ``shapes``.

        ``use`` names the activation input they meet, None for tables that meet none. The same
        object again means the same weights: they are placed and prepared once.
        """
        ...

    def vector(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A small parameter as f32[shape] that the caller may keep and change."""
        ...


class ArtifactSource:
    """Parameters of one component of an artifact, in their stored formats, as CPU tensors.

    Raises ArtifactError for one that is missing, misshapen or damaged.
    """

    def __init__(self, artifact: Artifact, component: str = "text") -> None:
        self._binder = Binder(artifact, (component,))
        self._handed_out: dict[object, WeightMatrix] = {}

    def matrix(self, prefix: str, shapes: Shapes, use: str | None) -> WeightMatrix:
        named = [(prefix + name, shape) for name, shape in shapes.items()]
        bound = self._binder.stacked(named, use=use)
        known = self._handed_out.setdefault(bound.key, _weight_matrix(bound))
        if known.allow_a8 and not _allows_a8(bound):
            # Never rounded more than a use permits, though it takes another copy.
            return replace(known, allow_a8=False)
        return known

    def vector(self, name: str, shape: tuple[int, ...]) -> Tensor:
        import torch

        return self._binder.tensor(name, shape).to_torch(torch.float32).clone()

    def finish(self) -> None:
        """Raise ArtifactError if a parameter of the component was never asked for."""
        self._binder.finish()


def _weight_matrix(bound: BoundTensor) -> WeightMatrix:
    stored = bound.encoded()
    return WeightMatrix(
        stored.format, stored.rows, stored.columns, stored.planes, allow_a8=_allows_a8(bound)
    )


def _allows_a8(bound: BoundTensor) -> bool:
    """Whether every use that the call fuses permits it."""
    return "A8" in bound.activation.permitted
