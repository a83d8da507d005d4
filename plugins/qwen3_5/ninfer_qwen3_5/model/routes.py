"""The ways through a layer: many tokens of one sequence, one token of several, or a few of each.

A route chooses the op of each step; layers call it and stay the same. The first two read the
committed recurrent state and write their outcome into another slot, so that dropping it undoes it:
the chunk route starts by a copy, the step route writes there directly. The verify route leaves
records in place of a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ninfer_core.ops.contracts.values import (
    AttentionMixer,
    GdnMixer,
    GdnRecords,
    KvCache,
    Stream,
    WeightMatrix,
)
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.model.attention import attention_chunk
from ninfer_qwen3_5.model.gdn import gdn_chunk
from ninfer_qwen3_5.model.placement import Placement
from ninfer_qwen3_5.model.state import GdnState

if TYPE_CHECKING:
    from torch import Tensor


class Route(Protocol):
    """``scale`` is that of the norm that reads the stream next, ``eps`` that of every norm."""

    def open(self, ids_T: Tensor, table: WeightMatrix, scale: Tensor) -> Stream: ...

    def norm_linear(self, stream: Stream, eps: float, weight: WeightMatrix) -> Tensor: ...

    def norm_swiglu(self, stream: Stream, eps: float, weight: WeightMatrix) -> Tensor: ...

    def linear_add(
        self, x_TK: Tensor, weight: WeightMatrix, stream: Stream, scale: Tensor
    ) -> Stream: ...

    def attend(self, stacked_TN: Tensor, mixer: AttentionMixer, cache: KvCache) -> Tensor: ...

    def recur(self, stacked_TN: Tensor, mixer: GdnMixer, state: GdnState) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class ChunkRoute:
    """n tokens of one sequence whose state lies in ``slot`` i64[1]."""

    ops: Ops
    place: Placement
    slot: Tensor

    def open(self, ids_T: Tensor, table: WeightMatrix, scale: Tensor) -> Stream:
        return Stream(self.ops.embedding(ids_T, table), scale)

    def norm_linear(self, stream: Stream, eps: float, weight: WeightMatrix) -> Tensor:
        normed = self.ops.rms_norm(stream.residual, stream.scale, eps)
        return self.ops.linear_prefill(normed, weight)

    def norm_swiglu(self, stream: Stream, eps: float, weight: WeightMatrix) -> Tensor:
        return self.ops.swiglu(self.norm_linear(stream, eps, weight))

    def linear_add(
        self, x_TK: Tensor, weight: WeightMatrix, stream: Stream, scale: Tensor
    ) -> Stream:
        return Stream(self.ops.linear_prefill_add(x_TK, weight, stream.residual), scale)

    def attend(self, stacked_TN: Tensor, mixer: AttentionMixer, cache: KvCache) -> Tensor:
        return attention_chunk(stacked_TN, mixer, cache, self.place, self.ops)

    def recur(self, stacked_TN: Tensor, mixer: GdnMixer, state: GdnState) -> Tensor:
        return gdn_chunk(stacked_TN, mixer, state, self.slot, self.ops)


@dataclass(frozen=True, slots=True)
class StepRoute:
    """One token of each of B sequences, states from ``slots`` to ``targets`` i64[B]."""

    ops: Ops
    place: Placement
    slots: Tensor
    targets: Tensor

    def open(self, ids_T: Tensor, table: WeightMatrix, scale: Tensor) -> Stream:
        return self.ops.embed_stream(ids_T, table, scale)

    def norm_linear(self, stream: Stream, eps: float, weight: WeightMatrix) -> Tensor:
        return self.ops.norm_linear(stream, eps, weight)

    def norm_swiglu(self, stream: Stream, eps: float, weight: WeightMatrix) -> Tensor:
        return self.ops.norm_swiglu(stream, eps, weight)

    def linear_add(
        self, x_TK: Tensor, weight: WeightMatrix, stream: Stream, scale: Tensor
    ) -> Stream:
        return self.ops.linear_add(x_TK, weight, stream, scale)

    def attend(self, stacked_TN: Tensor, mixer: AttentionMixer, cache: KvCache) -> Tensor:
        place = self.place
        return self.ops.attention_mix_decode(
            stacked_TN,
            mixer,
            place.cos,
            place.sin,
            cache,
            place.rows,
            place.kv_slots,
            settled=True,
        )

    def recur(self, stacked_TN: Tensor, mixer: GdnMixer, state: GdnState) -> Tensor:
        return self.ops.gdn_mix_step(
            stacked_TN,
            mixer,
            state.history,
            state.recurrent,
            self.slots,
            self.targets,
            settled=True,
        )


@dataclass(frozen=True, slots=True)
class VerifyRoute(StepRoute):
    """W tokens of each of B sequences, to the bit as W steps; what each would do to the state of
    its slot is recorded. ``targets`` are not used."""

    def recur(self, stacked_TN: Tensor, mixer: GdnMixer, state: GdnState) -> Tensor:
        assert isinstance(state.records, GdnRecords)
        return self.ops.gdn_mix_verify(
            stacked_TN,
            mixer,
            state.history,
            state.recurrent,
            self.slots,
            state.records,
            settled=True,
        )
