"""The tensors that ops share, grouped: weights, caches, addresses, records."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.contract.resources import PAGE_TOKENS as PAGE_TOKENS

if TYPE_CHECKING:
    from torch import Tensor

CONV_HISTORY = 3
"""Rows that a causal convolution of width 4 remembers."""


@dataclass(frozen=True, slots=True)
class WeightMatrix:
    """A matrix ``[rows, columns]`` that multiplies activations: ``y[rows] = W x[columns]``.

    ``format`` names how ``planes`` encode it. Unquantised formats (``fp32``, ``bf16``, ``fp16``)
    have one plane ``weight`` of that shape. A format that starts with a backend's name and a dot is
    that backend's resident form, made by :class:`~ninfer_core.ops.contracts.linear.PrepareLinear`.
    ``allow_a8``: every consumer permits that activations are rounded to eight bits; of a prepared
    weight, that the backend does so on its prefill route.
    """

    format: str
    rows: int
    columns: int
    planes: Mapping[str, Tensor]
    allow_a8: bool = False


@dataclass(frozen=True, slots=True)
class Stream:
    """The residual stream on the decode route and the norm that reads it next.

    ``residual`` x[T, H], ``scale`` f32[H] of that norm. What else the norm needs may stand beside
    it, made by the op that made the rows: ``scaled`` x[T, H] = ``residual * scale`` rounded, and
    ``squares`` f32[T, P], parts of the sum of squares of each row. Only the backend that made
    them reads them.
    """

    residual: Tensor
    scale: Tensor
    scaled: Tensor | None = None
    squares: Tensor | None = None


@dataclass(frozen=True, slots=True)
class KvCache:
    """Keys (normed and rotated) and raw values of one attention layer.

    ``keys`` and ``values`` are ``[P, 64, kv, D]``: page, token in the page, head. A token is one
    contiguous row, and pages with ascending ids are one long sequence of such rows.
    ``format`` names the element encoding. ``fp32`` and ``bf16`` are plain; ``int8`` holds
    i8 codes with a scale for each 64 elements, ``fp8`` E4M3 codes with one for each head:
    ``key_scales`` and ``value_scales`` f32[P, 64, kv, D / 64] or f32[P, 64, kv, 1]. An element is
    ``code * scale``; ``scale = amax / 127`` or ``amax / 448``, codes rounded half to even.
    """

    format: str
    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PagedRows:
    """Where the rows of one call stand in their sequences, and where those sequences lie.

    Row ``w`` of sequence ``b`` is token ``starts[b] + w`` and sees tokens ``0 .. starts[b] + w``.
    Rows ``w >= live[b]`` are padding: nothing is stored for them and attention returns zeros. Token
    ``p`` of sequence ``b`` lies in page ``block_tables[table_rows[b], p // 64]`` at ``p % 64``.

    ``block_tables`` i32[L, max_pages], ``table_rows`` i32[B], ``starts`` i32[B] (tokens already
    cached), ``live`` i32[B] in 0..W, ``width`` W. A prefill chunk is the case B = 1, W = n.
    Tokens below ``first``, at most the first of a sequence, are seen by no row of the decode route.
    """

    block_tables: Tensor
    table_rows: Tensor
    starts: Tensor
    live: Tensor
    width: int
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GdnMixer:
    """A gated delta net without its projections: ``conv`` f32[4, C], ``decay_rate`` and
    ``dt_bias`` f32[nv], ``norm_scale`` f32[dv] as stored, and the sizes."""

    conv: Tensor
    decay_rate: Tensor
    dt_bias: Tensor
    norm_scale: Tensor
    eps: float
    key_heads: int
    key_size: int
    value_heads: int
    value_size: int

    @property
    def channels(self) -> int:
        """C: queries, keys and values of all heads."""
        return 2 * self.key_heads * self.key_size + self.value_heads * self.value_size


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMixer:
    """Gated attention without its projections: ``q_scale`` and ``k_scale`` f32[D], and sizes."""

    q_scale: Tensor
    k_scale: Tensor
    eps: float
    heads: int
    kv_heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class GdnRecords:
    """What verify rows leave behind so that a fold can replay them, per state slot.

    ``inputs`` x[S, Wmax, C] is what the convolution took. In fp32, what the delta rule did to the
    state: ``keys`` [S, Wmax, nk, dk] after normalisation, ``updates`` [S, Wmax, nv, dv] (its u) and
    ``keep`` [S, Wmax, nv] (``exp(decay)``), so that a fold is ``S = keep * S + k u^T`` per token.
    """

    inputs: Tensor
    keys: Tensor
    updates: Tensor
    keep: Tensor


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What penalties look at, per lane: ``generated`` i32[lanes, V] counts of generated tokens,
    ``prompt`` bool[lanes, V] tokens that occur in the prompt."""

    generated: Tensor
    prompt: Tensor


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The sampling settings of B sequences as device tensors.

    f32[B]: ``temperature`` (<= 0 is greedy), ``top_p``, ``min_p``, ``presence``, ``frequency``,
    ``repetition``; ``top_k`` i32[B] (0 keeps all); ``seeds`` i64[B] holding the bits of a u64;
    ``bias_ids`` i32[B, M] with -1 for unused entries and ``bias`` f32[B, M], added once per entry;
    ``banned_ids`` i32[B, N] (-1 unused), forbidden at positions below ``banned_before`` i32[B].
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    presence: Tensor
    frequency: Tensor
    repetition: Tensor
    seeds: Tensor
    bias_ids: Tensor
    bias: Tensor
    banned_ids: Tensor
    banned_before: Tensor


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Allowed-token bits: ``words`` i32[T, ceil(V/32)] (bit ``v % 32`` of word ``v // 32``, least
    significant first, 1 = allowed; the bits of a u32), used for rows where ``active`` bool[T]."""

    words: Tensor
    active: Tensor


@dataclass(frozen=True, slots=True)
class DraftLaw:
    """The law that drafts were drawn from, on its support: ``ids`` i32[B, K, M] (distinct, -1
    unused) and ``probs`` f32[B, K, M]. Tokens that are not listed have probability 0."""

    ids: Tensor
    probs: Tensor


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that a draft is chosen from: ``ids`` i32[T, M], distinct in a row, best first, and
    their ``values`` f32[T, M]."""

    ids: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Acceptance:
    """``accepted`` i32[B] drafts taken; ``tokens`` i32[B] the correction or bonus after them."""

    accepted: Tensor
    tokens: Tensor


@dataclass(frozen=True, slots=True)
class Drawn:
    """``tokens`` i32[T] and ``broken`` bool[T]: the row's raw logits held NaN or an infinity."""

    tokens: Tensor
    broken: Tensor


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """``chosen`` f32[T]; the k likeliest, best first, ties to the lower id: ``top_ids`` i32[T, k],
    ``top_values`` f32[T, k]."""

    chosen: Tensor
    top_ids: Tensor
    top_values: Tensor


class DrawPurpose(enum.IntEnum):
    """What a random number is for; part of its key, so that draws never share one."""

    PREFILL = 0
    DECODE = 1
    ACCEPT = 2
    CORRECTION = 3
    BONUS = 4
    DRAFT = 5
