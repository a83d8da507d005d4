"""Ops of a decode round that stand for several: fewer kernels, the same formulas.

Each is defined by a composition of the ops next door and may round differently inside, never
outside: inputs and outputs keep their dtypes. All are row-invariant. Rows are never normalised in
memory: a product takes the stream, and the inverse root mean square multiplies its sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ninfer_core.ops.contracts.values import (
    AttentionMixer,
    GdnMixer,
    GdnRecords,
    KvCache,
    PagedRows,
    Stream,
    WeightMatrix,
)

if TYPE_CHECKING:
    from torch import Tensor


class OpenStream(Protocol):
    def __call__(self, residual: Tensor, scale: Tensor) -> Stream:
        """The stream over rows x[T, H], read next by the norm of ``scale`` f32[H]."""
        ...


class NormLinear(Protocol):
    def __call__(self, stream: Stream, eps: float, weight: WeightMatrix) -> Tensor:
        """``linear_decode(rms_norm(stream.residual, stream.scale, eps), weight)``.

        weight prepared. Returns x[T, rows].
        """
        ...


class LinearAdd(Protocol):
    def __call__(self, x: Tensor, weight: WeightMatrix, stream: Stream, scale: Tensor) -> Stream:
        """``stream.residual + linear_decode(x, weight)``, added in fp32 and rounded once.

        x x[T, columns]. Returns a new stream, read next by the norm of ``scale``.
        """
        ...


class NormSwiGlu(Protocol):
    def __call__(self, stream: Stream, eps: float, weight: WeightMatrix) -> Tensor:
        """``swiglu(linear_decode(rms_norm(stream.residual, stream.scale, eps), weight))``.

        weight [2I, columns] stacks gate and up. Returns x[T, I].
        """
        ...


class NormHead(Protocol):
    def __call__(
        self,
        stream: Stream,
        eps: float,
        weight: WeightMatrix,
        addressable: int,
        out: Tensor | None = None,
    ) -> Tensor:
        """``lm_head(rms_norm(stream.residual, stream.scale, eps), weight, addressable)``:
        f32[T, V]; written to ``out``, adjacent rows of that shape and type, where it is given, and
        that returned."""
        ...


class LinearPrefillAdd(Protocol):
    def __call__(self, x: Tensor, weight: WeightMatrix, residual: Tensor) -> Tensor:
        """``residual + linear_prefill(x, weight)``; as :class:`LinearAdd`, not row-invariant.

        The memory of ``residual`` may be used for the result: nobody reads its values afterwards.
        """
        ...


class GdnMixStep(Protocol):
    def __call__(
        self,
        stacked: Tensor,
        mixer: GdnMixer,
        history: Tensor,
        state: Tensor,
        slots: Tensor,
        targets: Tensor,
        settled: bool = False,
    ) -> Tensor:
        """One token of a gated delta net between its two projections.

        stacked x[B, C + nv * dv + 2 nv] holds q|k|v (C channels), z, b, a. The convolution step
        over q|k|v (its output rounded to x), gates of a and b, the delta rule step, then the gated
        norm with z. Returns x[B, nv * dv].

        *Effect*: ``history[targets]`` and ``state[targets]`` as in CausalConvStep and GdnStep,
        except that no target is a slot that the call reads, not even its own sequence's: heads
        that share queries and keys read the same history independently of each other.

        ``settled`` promises that ``slots`` and the history and state in them were complete before
        the call of EmbedStream that began this forward pass, so that a backend may fetch them while
        the kernels in between still run.
        """
        ...


class GdnMixVerify(Protocol):
    def __call__(
        self,
        stacked: Tensor,
        mixer: GdnMixer,
        history: Tensor,
        state: Tensor,
        slots: Tensor,
        records: GdnRecords,
        settled: bool = False,
    ) -> Tensor:
        """W tokens of each of B sequences, to the bit as W calls of :class:`GdnMixStep`.

        stacked x[B * W, C + nv * dv + 2 nv], W at most the rows of ``records``; slots i64[B],
        distinct. ``settled`` as there. Returns x[B * W, nv * dv].

        *Effect*: all ``records`` at ``[slots[b], :W]``; history and state are not written.
        """
        ...


class GdnFoldLayers(Protocol):
    def __call__(
        self,
        history: Tensor,
        state: Tensor,
        slots: Tensor,
        records: GdnRecords,
        counts: Tensor,
        targets: Tensor,
    ) -> None:
        """CausalConvFold and GdnFold in every layer at once.

        history x[N, S, 3, C], state f32[N, S, nv, dk, dv] and every tensor of ``records`` have the
        N layers as a first dimension; slots and targets i64[B], counts i32[B].

        *Effect*: that of both ops.
        """
        ...


class AttentionMixDecode(Protocol):
    def __call__(
        self,
        stacked: Tensor,
        mixer: AttentionMixer,
        cos: Tensor,
        sin: Tensor,
        cache: KvCache,
        rows: PagedRows,
        slots: Tensor,
        settled: bool = False,
    ) -> Tensor:
        """Gated attention of a few rows per sequence between its two projections.

        stacked x[B * W, nh * 2D + 2 kv * D]: per query head its query and its gate, then keys, then
        values. QkNormRopeStore, paged decode attention with scale ``D^-0.5``, sigmoid gate.
        cos, sin f32[B * W, R/2]; slots i64[B * W] from KvSlots. ``settled`` promises
        of ``rows`` what :class:`GdnMixStep` says. Returns x[B * W, nh * D].

        *Effect*: the rows' keys and values at ``slots``.
        """
        ...
