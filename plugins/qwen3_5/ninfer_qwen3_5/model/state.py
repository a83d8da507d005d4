"""The mutable tensors that the layers read and write, per layer, shared by all sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.ops.contracts.values import GdnRecords, KvCache
from ninfer_core.ops.table import Ops

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class GdnState:
    """One gated delta net layer, by state slot: ``history`` [S, 3, C], ``recurrent``
    f32[S, nv, dk, dv], and what verify rows left to be folded, where there are such."""

    history: Tensor
    recurrent: Tensor
    records: GdnRecords | None = None

    def by_layer(self) -> Iterator[GdnState]:
        """Views of the layers of a state whose tensors have the layers as first dimension."""
        for index in range(self.history.shape[0]):
            records = None
            if self.records is not None:
                whole = self.records
                pools = whole.inputs, whole.keys, whole.updates, whole.keep
                records = GdnRecords(*(pool[index] for pool in pools))
            yield GdnState(self.history[index], self.recurrent[index], records)


LayerState = KvCache | GdnState


@dataclass(frozen=True, slots=True)
class ModelState:
    """One entry per layer, in layer order; ``recurrent`` holds all gated delta nets' state with the
    layers as its first dimension, records too, and theirs are views of it. A draft backend adds
    ``drafted``, its attention caches, and where it asks for hidden rows ``hidden`` [S, H], by slot
    the target's last row after the final norm."""

    layers: tuple[LayerState, ...]
    recurrent: GdnState
    drafted: tuple[KvCache, ...] = ()
    hidden: Tensor | None = None

    @property
    def caches(self) -> tuple[KvCache, ...]:
        """All attention caches: the layers' in their order, then the drafter's."""
        own = tuple(layer for layer in self.layers if isinstance(layer, KvCache))
        return own + self.drafted

    def copy_slot(self, source: int, target: int) -> None:
        """Give ``target`` the committed recurrent state of ``source``."""
        for whole in (self.recurrent.history, self.recurrent.recurrent):
            whole[:, target].copy_(whole[:, source])
        if self.hidden is not None:
            self.hidden[target].copy_(self.hidden[source])

    def fold(self, ops: Ops, slots: Tensor, counts: Tensor, targets: Tensor) -> None:
        """Give each of ``targets`` i64[B] the state of its slot after the first ``counts`` i32[B]
        rows that were last verified from there. A target is its own slot or none of ``slots``."""
        whole = self.recurrent
        assert whole.records is not None
        ops.gdn_fold_layers(whole.history, whole.recurrent, slots, whole.records, counts, targets)

    def copy_page(self, source: int, target: int, columns: int) -> None:
        """Give page ``target`` the first ``columns`` tokens of page ``source``, in every layer."""
        for cache in self.caches:
            for plane in (cache.keys, cache.values, cache.key_scales, cache.value_scales):
                if plane is not None:
                    plane[target, :columns].copy_(plane[source, :columns])

    def clear_slot(self, slot: int) -> None:
        """Make ``slot`` the state before the first token."""
        for whole in (self.recurrent.history, self.recurrent.recurrent):
            whole[:, slot].zero_()
        if self.hidden is not None:
            self.hidden[slot].zero_()
