"""Rotary positions, the paged key/value store, attention over pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ninfer_core.ops.contracts.values import KvCache, PagedRows

if TYPE_CHECKING:
    from torch import Tensor


class RopeAngles(Protocol):
    def __call__(
        self, positions: Tensor, inverse_frequencies: Tensor, axes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``cos`` and ``sin`` of ``positions[axes[j], t] * inverse_frequencies[j]``.

        positions i32[3, T] (time, height, width; equal for text), inverse_frequencies f32[R/2],
        axes i64[R/2] in 0..2. Angles and functions in fp32. Returns two f32[T, R/2]. Row-invariant.
        Both tables come from :mod:`ninfer_core.ops.rope`.
        """
        ...


class KvSlots(Protocol):
    def __call__(self, rows: PagedRows) -> Tensor:
        """Physical place of every row, i64[B * W]: ``page * 64 + offset``, -1 for padding."""
        ...


class PlaceRows(Protocol):
    def __call__(
        self, rows: PagedRows, positions: Tensor, inverse_frequencies: Tensor, axes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``kv_slots(rows)``, then both tables of ``rope_angles`` for positions i32[3, B * W]."""
        ...


class QkNormRopeStore(Protocol):
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_scale: Tensor,
        k_scale: Tensor,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        cache: KvCache,
        slots: Tensor,
    ) -> Tensor:
        """Norm and rotate queries and keys per head, store keys and values, return the queries.

        ``rms_norm`` over D with q_scale, k_scale f32[D]; then on the first R dimensions, pairs
        ``(j, j + R/2)``: ``a' = a cos - b sin; b' = b cos + a sin``; the rest passes through.

        q x[T, nh, D], k and v x[T, kv, D] (strided views allowed), cos and sin f32[T, R/2], slots
        i64[T] from :class:`KvSlots`. Returns x[T, nh, D]. Row-invariant.

        *Effect*: writes ``cache.keys`` and ``cache.values`` at the given slots; -1 writes nothing.
        """
        ...


class PagedDecodeAttention(Protocol):
    def __call__(self, q: Tensor, cache: KvCache, rows: PagedRows, scale: float) -> Tensor:
        """Causal attention of a few rows per sequence over its pages.

        ``o = softmax(scale * q K^T) V`` with query head ``h`` on key/value head ``h // (nh / kv)``,
        row ``(b, w)`` over tokens ``rows.first .. starts[b] + w``, softmax in fp32.
        q x[B * W, nh, D]. Returns x[B * W, nh, D], zeros for padding rows. Row-invariant: a verify
        row has the bits of the one-row call at its position. What lies beyond a row's last token,
        NaN even, has no influence.
        """
        ...


class PagedPrefillAttention(Protocol):
    def __call__(self, q: Tensor, cache: KvCache, rows: PagedRows, scale: float) -> Tensor:
        """The attention of :class:`PagedDecodeAttention` for one chunk: B = 1, W = n rows."""
        ...


class BlockAttention(Protocol):
    def __call__(
        self,
        q: Tensor,
        cache: KvCache,
        rows: PagedRows,
        scale: float,
        *,
        causal: bool,
        window: int | None = None,
    ) -> Tensor:
        """Attention of a block of rows per sequence over its context and over the block itself.

        The keys and values of the block's live rows stand in the cache. Row ``(b, w)`` is token
        ``p = starts[b] + w`` and sees the tokens t from ``rows.first`` on with ``t <= p`` (causal)
        or ``t < starts[b] + live[b]`` (not causal), and with ``p - t < window`` where a window is
        given. A window is at least W, so that only context falls out of it. Heads, softmax and
        ``scale`` as in :class:`PagedDecodeAttention`.

        q x[B * W, nh, D], W up to 16. Returns x[B * W, nh, D], zeros for padding rows. The bits of
        a sequence's rows depend on that sequence and on W alone. A token that no live row of its
        sequence sees has no influence, NaN even, and a later row of a causal block none on those
        before it.
        """
        ...
