"""From logits to tokens: processing, laws, draws, log-probabilities, speculative acceptance.

Randomness is counter-based: ``uniform(seed, position, purpose, index)`` is word ``index % 4`` of
Philox4x32-10 with key ``(seed mod 2^32, seed div 2^32)`` and counter ``(position, purpose,
index div 4, 0)``, shifted right by 8 and times 2^-24, so it lies in [0, 1) and is the same on every
backend. The position is that of the token being chosen. All ops here are row-invariant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ninfer_core.ops.contracts.values import (
    Acceptance,
    DraftLaw,
    Drawn,
    DrawPurpose,
    LogprobRows,
    SamplingRows,
    TokenCounts,
    TokenMasks,
)

if TYPE_CHECKING:
    from torch import Tensor


class NonfiniteRows(Protocol):
    def __call__(self, logits: Tensor, addressable: int) -> Tensor:
        """Rows with NaN or an infinity among the first ``addressable`` raw logits: bool[T]."""
        ...


class ProcessLogits(Protocol):
    def __call__(
        self,
        logits: Tensor,
        rows: SamplingRows,
        counts: TokenCounts,
        lanes: Tensor,
        positions: Tensor,
        drafts: Tensor | None = None,
        masks: TokenMasks | None = None,
    ) -> Tensor:
        """Penalties, bias, bans and masks, in this order; forbidden tokens become -inf.

        With c the count of generated tokens of the lane, plus the drafts before the row's column:
        tokens with c > 0 or in the prompt: ``l = l / repetition if l > 0 else l * repetition``;
        ``l -= presence * (c > 0) + frequency * c``; ``l += bias``; banned ids at positions below
        ``banned_before``; tokens whose mask bit is 0.

        logits f32[B * W, V], lanes i64[B] rows of ``counts``, positions i32[B * W] of the tokens
        being chosen, drafts i32[B, W - 1] (row w counts drafts ``0 .. w-1``; -1 is no token), masks
        over all T rows. Returns f32[B * W, V]: a new tensor, or ``logits`` itself when no row asks
        for anything; never written in place.
        """
        ...


class SamplingLaw(Protocol):
    def __call__(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        """The law that tokens are drawn from, f32[B * W, V], from processed logits.

        temperature <= 0: one-hot at the largest logit, lowest id on ties. Otherwise candidates are
        ordered by logit, ties by lower id; top-k keeps the first k; with p the softmax of
        ``logits / temperature`` over those, min-p keeps ``p >= min_p * max p`` and top-p the
        shortest prefix with mass >= top_p (at least one; all when top_p is 1); what both keep is
        renormalised. A row of -inf alone gives zeros.
        """
        ...


class SampleTokens(Protocol):
    def __call__(
        self, logits: Tensor, rows: SamplingRows, positions: Tensor, purpose: DrawPurpose
    ) -> Tensor:
        """One token per row of processed logits f32[B * W, V], i32[B * W].

        Greedy rows take the argmax. Others take the smallest id whose cumulated law, in id order,
        exceeds ``uniform(seed, position, purpose, 0)`` times the law's sum. A row without a law
        (NaN, or -inf everywhere) gives 0.
        """
        ...


class ArgmaxRows(Protocol):
    def __call__(self, logits: Tensor, addressable: int) -> Drawn:
        """NonfiniteRows, and the largest of the first ``addressable`` logits, lowest id on ties.

        logits f32[T, V]; a broken row's token is 0.
        """
        ...


class DrawRows(Protocol):
    def __call__(
        self,
        logits: Tensor,
        addressable: int,
        settings: SamplingRows,
        counts: TokenCounts,
        lanes: Tensor,
        positions: Tensor,
        purpose: DrawPurpose,
        masks: TokenMasks | None = None,
        drafts: Tensor | None = None,
    ) -> Drawn:
        """NonfiniteRows, ProcessLogits and SampleTokens of T rows, one per sequence.

        ``settings`` has one entry per *lane*; row t uses entry ``lanes[t]`` (i64[T]). positions
        i32[T] of the tokens being chosen. With drafts i32[B, W - 1] rows are W of each of B
        sequences, as in ProcessLogits, and lanes are equal in each W of them.
        """
        ...


class Logprobs(Protocol):
    def __call__(self, logits: Tensor, tokens: Tensor, top: int) -> LogprobRows:
        """The model's own log-probabilities: log-softmax of raw (not processed) logits f32[T, V].

        tokens i32[T]; ``top`` >= 0 alternatives.
        """
        ...


class AcceptDrafts(Protocol):
    def __call__(
        self,
        laws: Tensor,
        drafts: Tensor,
        live: Tensor,
        draft_law: DraftLaw | None,
        seeds: Tensor,
        positions: Tensor,
    ) -> Acceptance:
        """Lossless acceptance of K = W - 1 >= 1 drafts per sequence.

        Row ``(b, i)`` of ``laws`` f32[B * W, V] is the target's law p_i for the token that draft i
        proposes. Drafts are tested in order up to ``live[b]``; the first rejection ends the scan.

        With a draft law q: accept when ``u * q(d) < p(d)``, u of purpose ACCEPT at the draft's
        position; on rejection draw from ``max(p - q, 0)`` renormalised, or from p when that has no
        mass (CORRECTION); when all are accepted draw from ``p_live`` (BONUS).

        With ``draft_law`` None the drafts are one-hot: draw y from p_i with the DECODE number of
        the position, accept when ``y == d``, else y is the correction; after all, y is the bonus.
        This is the same rule in law, and gives exactly the tokens of plain decoding.

        drafts i32[B, K], live i32[B] in 0..K, seeds i64[B], positions i32[B * W].
        """
        ...


class CountTokens(Protocol):
    def __call__(
        self, counts: TokenCounts, lanes: Tensor, tokens: Tensor, accepted: Tensor
    ) -> None:
        """*Effect*: adds the first ``accepted[b]`` (i32[B]) of ``tokens`` i32[B, W] to
        ``counts.generated[lanes[b]]``; lanes i64[B], distinct."""
        ...
