"""The mutable tensors that the layers read and write, per layer, shared by all sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import KvCache

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class GdnState:
    """One gated delta net layer, by state slot: ``history`` [S, 3, C], ``recurrent``
    f32[S, nv, dk, dv]."""

    history: Tensor
    recurrent: Tensor


LayerState = KvCache | GdnState


@dataclass(frozen=True, slots=True)
class ModelState:
    """One entry per layer, in layer order; ``recurrent`` holds all gated delta nets' state with the
    layers as its first dimension, and theirs are views of it."""

    layers: tuple[LayerState, ...]
    recurrent: GdnState

    def copy_slot(self, source: int, target: int) -> None:
        """Give ``target`` the committed recurrent state of ``source``."""
        for whole in (self.recurrent.history, self.recurrent.recurrent):
            whole[:, target].copy_(whole[:, source])

    def copy_page(self, source: int, target: int, columns: int) -> None:
        """Give page ``target`` the first ``columns`` tokens of page ``source``, in every layer."""
        for layer in self.layers:
            if isinstance(layer, KvCache):
                for plane in (layer.keys, layer.values, layer.key_scales, layer.value_scales):
                    if plane is not None:
                        plane[target, :columns].copy_(plane[source, :columns])

    def clear_slot(self, slot: int) -> None:
        """Make ``slot`` the state before the first token."""
        for whole in (self.recurrent.history, self.recurrent.recurrent):
            whole[:, slot].zero_()
