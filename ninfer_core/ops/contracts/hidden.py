"""Rows at the ends of a forward pass: from tokens into a stream, and from the target to a drafter.

All are row-invariant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ninfer_core.ops.contracts.values import Stream, WeightMatrix

if TYPE_CHECKING:
    from torch import Tensor


class EmbedStream(Protocol):
    def __call__(self, ids: Tensor, table: WeightMatrix, scale: Tensor) -> Stream:
        """``open_stream(embedding(ids, table), scale)``; begins a forward pass of the decode route.

        ids i32[T], scale f32[H]. H = columns of the table.
        """
        ...


class HandOver(Protocol):
    def __call__(
        self,
        residual: Tensor,
        scale: Tensor,
        eps: float,
        pool: Tensor,
        slots: Tensor,
        kept: Tensor,
        places: Tensor,
    ) -> Tensor:
        """Hidden rows of a round, kept for later and moved on by a row for the drafter.

        With ``h = rms_norm(residual, scale, eps)`` of W rows of each of B sequences, the result is
        ``pool[slots[b]]`` for the first row of sequence b and ``h[b, w - 1]`` for its others.

        residual x[B * W, H], scale f32[H], pool x[S, H] by state slot, slots i64[B], kept x[N, H],
        places i32 or i64[B]. Returns x[B * W, H].

        *Effect*: ``kept[places[b] + w] = h[b, w]``. ``kept`` may be ``pool``: then no row that is
        written is one that the call reads.
        """
        ...


class DraftInputs(Protocol):
    def __call__(
        self,
        ids: Tensor,
        table: WeightMatrix,
        token_scale: Tensor,
        hidden: Tensor,
        hidden_scale: Tensor,
        eps: float,
        inner_scale: Tensor | None = None,
    ) -> Tensor:
        """Normed embeddings beside normed hidden rows: x[T, 2H].

        ``[rms_norm(embedding(ids, table), token_scale), rms_norm(h, hidden_scale)]``, h being
        ``hidden`` or, with ``inner_scale``, ``rms_norm(hidden, inner_scale)``. Every norm has
        ``eps`` and rounds to x.

        ids i32[T], hidden x[T, H], scales f32[H].
        """
        ...
