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
    """One entry per layer, in layer order."""

    layers: tuple[LayerState, ...]

    def copy_slot(self, source: int, target: int) -> None:
        """Give ``target`` the committed recurrent state of ``source``."""
        for layer in self.gdn_layers():
            layer.history[target].copy_(layer.history[source])
            layer.recurrent[target].copy_(layer.recurrent[source])

    def clear_slot(self, slot: int) -> None:
        """Make ``slot`` the state before the first token."""
        for layer in self.gdn_layers():
            layer.history[slot].zero_()
            layer.recurrent[slot].zero_()

    def gdn_layers(self) -> list[GdnState]:
        return [layer for layer in self.layers if isinstance(layer, GdnState)]
