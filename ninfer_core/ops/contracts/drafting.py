"""What block drafters (DFlash, DFlash2) compute beside the ops of a decoder.

A block is W rows of one sequence: the anchor, then a row for each draft. G groups of channels,
R the rank of a selector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ninfer_core.ops.contracts.values import Candidates

if TYPE_CHECKING:
    from torch import Tensor


class BlockConv(Protocol):
    def __call__(self, x: Tensor, dynamic: Tensor, base: Tensor, side: int, width: int) -> Tensor:
        """A causal convolution of width 2 whose taps depend on the row, group by group.

        ``y[i, c] = sum_t (base[side, t, c] + dynamic[i, side, t, c // (H / G)]) * x[i - t, c]`` for
        t = 0, 1, with zero left of a block's first row.

        x x[T, H] with T a multiple of ``width`` W, dynamic x[T, 4 G] as [T, 2, 2, G], base
        f32[2, 2, H], side 0 (what goes into a sublayer) or 1 (what comes out). Returns x[T, H].
        Row-invariant, the row before it in its block included.
        """
        ...


class DraftCandidates(Protocol):
    def __call__(self, logits: Tensor, count: int, addressable: int) -> Candidates:
        """The ``count`` largest of the first ``addressable`` logits of each row.

        Best first, ties by lower id; NaN counts as -inf. logits f32[T, V], count 1..64 and at most
        ``addressable``. Row-invariant.
        """
        ...


class DraftWalk(Protocol):
    def __call__(
        self,
        candidates: Candidates,
        hidden: Tensor,
        anchors: Tensor,
        predecessor: Tensor,
        successor: Tensor,
    ) -> Tensor:
        """One candidate per row, left to right, each scored with the one before it.

        Row ``(b, j)`` has ``score[m] = values[m] + sum_r predecessor[a, r] * hidden[r] *
        successor[ids[m], r]`` in fp32, where a is the token taken at row j - 1, ``anchors[b]`` for
        the first. The largest score is taken, the first of equal ones; NaN counts as -inf.

        candidates of B * K rows, hidden x[B * K, R], anchors i32[B] (token ids, also where nobody
        uses the drafts), predecessor and successor [V, R] of a floating type. Returns i32[B, K].
        Row-invariant by sequences.
        """
        ...
