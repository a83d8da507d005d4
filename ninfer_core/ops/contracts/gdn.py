"""The gated delta net: causal convolution, gates, recurrence, and their speculative forms.

*step* advances one token per sequence, in place or into another slot, so that the old state stays
until the token is committed. *chunk* advances many tokens of one sequence in place. *verify*
computes the outputs of W rows per sequence and leaves the state alone, writing records instead;
*fold* then applies the first ``counts[b]`` records, with the bits that as many steps would have
left. Distinct sequences of a call have distinct slots. A fresh sequence starts from zeroed slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ninfer_core.ops.contracts.values import GdnRecords

if TYPE_CHECKING:
    from torch import Tensor


class CausalConvChunk(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, history: Tensor, slot: Tensor) -> Tensor:
        """Depthwise causal convolution of width 4 and SiLU over one sequence.

        ``y[t, c] = silu(sum_i weight[i, c] * x[t - 3 + i, c])``, earlier tokens from the history.
        x[n, C], weight f32[4, C] (a checkpoint's [C, 1, 4] turned once at load; tap 3 is the
        current token), history x[S, 3, C] oldest first, slot i64[1]. Returns x[n, C].

        *Effect*: ``history[slot]`` becomes the last 3 rows of old history and x together.
        """
        ...


class CausalConvStep(Protocol):
    def __call__(
        self, x: Tensor, weight: Tensor, history: Tensor, slots: Tensor, targets: Tensor
    ) -> Tensor:
        """One token of each sequence: x[B, C], slots and targets i64[B]. Row-invariant.

        *Effect*: ``history[targets[b]]`` becomes ``history[slots[b]]`` shifted by one row. A target
        is its own sequence's slot, or a slot that no sequence of the call reads.
        """
        ...


class CausalConvVerify(Protocol):
    def __call__(
        self, x: Tensor, weight: Tensor, history: Tensor, slots: Tensor, records: GdnRecords
    ) -> Tensor:
        """W tokens of each sequence, x[B * W, C] with W = T / B, bit-equal to W steps.

        *Effect*: ``records.inputs[slots[b], :W]`` becomes x; history is not written.
        """
        ...


class CausalConvFold(Protocol):
    def __call__(
        self,
        history: Tensor,
        slots: Tensor,
        records: GdnRecords,
        counts: Tensor,
        targets: Tensor | None = None,
    ) -> None:
        """*Effect*: ``history[slots[b]]`` with the first ``counts[b]`` (i32[B], 0..Wmax) inputs
        recorded for that slot goes to ``history[targets[b]]``, None the slots themselves. Targets
        as in :class:`CausalConvStep`."""
        ...


class GdnGates(Protocol):
    def __call__(
        self, a: Tensor, b: Tensor, decay_rate: Tensor, dt_bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``decay = -decay_rate * softplus(a + dt_bias)`` (a logarithm) and ``beta = sigmoid(b)``.

        a, b x[T, nv] (strided views allowed), decay_rate f32[nv] = ``exp(A_log)`` formed once at
        load, dt_bias f32[nv]. Returns two f32[T, nv], rows possibly strided. Row-invariant.
        """
        ...


class GdnStep(Protocol):
    def __call__(
        self,
        qkv: Tensor,
        decay: Tensor,
        beta: Tensor,
        state: Tensor,
        slots: Tensor,
        targets: Tensor,
        key_heads: int,
    ) -> Tensor:
        """One token of the gated delta rule per sequence, fp32, row-invariant.

        qkv is split into q [nk, dk], k [nk, dk], v [nv, dv]; value head ``j`` uses key head
        ``j // (nv / nk)``. First ``q *= rsqrt(sum q^2 + 1e-6) * dk^-0.5`` and
        ``k *= rsqrt(sum k^2 + 1e-6)``. Then per value head, in this order: ``S *= exp(decay)``,
        ``u = beta * (v - S^T k)``, ``S += k u^T``, ``o = S^T q``.

        qkv x[B, C] (the convolution's output), decay and beta f32[B, nv] (rows may be strided),
        state f32[S, nv, dk, dv], slots and targets i64[B]. Returns f32[B, nv, dv].

        *Effect*: ``state[targets[b]]`` becomes the state after the token; targets as in
        :class:`CausalConvStep`.
        """
        ...


class GdnChunk(Protocol):
    def __call__(
        self, qkv: Tensor, decay: Tensor, beta: Tensor, state: Tensor, slot: Tensor, key_heads: int
    ) -> Tensor:
        """n tokens of one sequence by the chunk form, from the state in its slot.

        Shapes of :class:`GdnStep` with n rows and slot i64[1]; any n >= 1. Equal to n steps up to
        rounding; the grid of 64 tokens starts at the call's first row.

        *Effect*: ``state[slot]`` becomes the state after the last row.
        """
        ...


class GdnVerify(Protocol):
    def __call__(
        self,
        qkv: Tensor,
        decay: Tensor,
        beta: Tensor,
        state: Tensor,
        slots: Tensor,
        key_heads: int,
        records: GdnRecords,
    ) -> Tensor:
        """W tokens of each sequence, T = B * W rows, bit-equal to W steps.

        *Effect*: ``records.keys``, ``.updates`` and ``.keep`` at ``[slots[b], :W]``; state is not
        written.
        """
        ...


class GdnFold(Protocol):
    def __call__(
        self,
        state: Tensor,
        slots: Tensor,
        records: GdnRecords,
        counts: Tensor,
        targets: Tensor | None = None,
    ) -> None:
        """*Effect*: ``state[slots[b]]`` after the first ``counts[b]`` (i32[B], 0..Wmax) tokens
        recorded for that slot goes to ``state[targets[b]]``, bit-equal to as many steps. Later
        records are never read. Targets as in :class:`CausalConvFold`."""
        ...
