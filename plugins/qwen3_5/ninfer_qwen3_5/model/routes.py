"""The two ways through a layer: many tokens of one sequence, or one token of several.

A route chooses the op of each step; layers call it and stay the same. Both read the committed
recurrent state and write their outcome into another slot, so that dropping it undoes it: the chunk
route starts by a copy, the step route writes there directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ninfer_core.ops.contracts.values import KvCache, PagedRows, WeightMatrix
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.model.state import GdnState

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the rows of a call stand: rotary tables f32[T, R/2] and physical places of keys."""

    rows: PagedRows
    kv_slots: Tensor
    cos: Tensor
    sin: Tensor


class Route(Protocol):
    @property
    def ops(self) -> Ops: ...

    @property
    def place(self) -> Placement: ...

    def linear(self, x_TK: Tensor, weight: WeightMatrix) -> Tensor: ...

    def attend(self, q_TnD: Tensor, cache: KvCache, scale: float) -> Tensor: ...

    def convolve(self, x_TC: Tensor, weight: Tensor, state: GdnState) -> Tensor: ...

    def recur(
        self, qkv_TC: Tensor, decay_Tn: Tensor, beta_Tn: Tensor, state: GdnState, key_heads: int
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class ChunkRoute:
    """n tokens of one sequence whose state lies in ``slot`` i64[1]."""

    ops: Ops
    place: Placement
    slot: Tensor

    def linear(self, x_TK: Tensor, weight: WeightMatrix) -> Tensor:
        return self.ops.linear_prefill(x_TK, weight)

    def attend(self, q_TnD: Tensor, cache: KvCache, scale: float) -> Tensor:
        return self.ops.paged_prefill_attention(q_TnD, cache, self.place.rows, scale)

    def convolve(self, x_TC: Tensor, weight: Tensor, state: GdnState) -> Tensor:
        return self.ops.causal_conv_chunk(x_TC, weight, state.history, self.slot)

    def recur(
        self, qkv_TC: Tensor, decay_Tn: Tensor, beta_Tn: Tensor, state: GdnState, key_heads: int
    ) -> Tensor:
        return self.ops.gdn_chunk(qkv_TC, decay_Tn, beta_Tn, state.recurrent, self.slot, key_heads)


@dataclass(frozen=True, slots=True)
class StepRoute:
    """One token of each of B sequences, states from ``slots`` to ``targets`` i64[B]."""

    ops: Ops
    place: Placement
    slots: Tensor
    targets: Tensor

    def linear(self, x_TK: Tensor, weight: WeightMatrix) -> Tensor:
        return self.ops.linear_decode(x_TK, weight)

    def attend(self, q_TnD: Tensor, cache: KvCache, scale: float) -> Tensor:
        return self.ops.paged_decode_attention(q_TnD, cache, self.place.rows, scale)

    def convolve(self, x_TC: Tensor, weight: Tensor, state: GdnState) -> Tensor:
        return self.ops.causal_conv_step(x_TC, weight, state.history, self.slots, self.targets)

    def recur(
        self, qkv_TC: Tensor, decay_Tn: Tensor, beta_Tn: Tensor, state: GdnState, key_heads: int
    ) -> Tensor:
        return self.ops.gdn_step(
            qkv_TC, decay_Tn, beta_Tn, state.recurrent, self.slots, self.targets, key_heads
        )
