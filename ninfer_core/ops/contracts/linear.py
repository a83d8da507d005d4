"""Embedding and matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ninfer_core.ops.contracts.values import LogprobRows, WeightMatrix

if TYPE_CHECKING:
    from torch import Tensor


class Embedding(Protocol):
    def __call__(self, ids: Tensor, table: WeightMatrix) -> Tensor:
        """Rows of a table, unscaled: ``y[t] = table[ids[t]]``.

        ids i32[T] in 0..rows-1; table as loaded or prepared. Returns x[T, columns], exact when the
        table's values are representable in x. Row-invariant.
        """
        ...


class PrepareLinear(Protocol):
    def __call__(self, weight: WeightMatrix) -> WeightMatrix:
        """The form of a weight that this backend multiplies by, made once at load.

        The result is what the linear and head ops take; its planes belong to the backend. Preparing
        a prepared weight returns it unchanged. ``allow_a8`` stays only where :class:`LinearPrefill`
        will round activations. Raises OpError for a format it does not know, a
        plane of a wrong shape, or planes on another device.
        """
        ...


class LinearDecode(Protocol):
    def __call__(self, x: Tensor, weight: WeightMatrix) -> Tensor:
        """``y[t, r] = sum_c x[t, c] * W[r, c]`` on the decode route: row-invariant.

        x[T, columns] with T >= 1, weight prepared. Returns x[T, rows]; fp32 accumulation.
        """
        ...


class LinearPrefill(Protocol):
    def __call__(self, x: Tensor, weight: WeightMatrix) -> Tensor:
        """The product of :class:`LinearDecode` for many rows of one sequence; not row-invariant.

        With a weight that allows it (``allow_a8``) each row of x may be rounded to E4M3 with a
        scale of its own, in fp32 ``m[t] = max_c |x[t, c]|``, codes half to even:
        ``y[t, r] = m[t] / 448 * sum_c e4m3(x[t, c] * (448 / m[t])) * W[r, c]``. A row of zeros, or
        below 2^-119, gives zeros, one that holds NaN or an infinity NaN. Whether a call rounds
        depends on the weight and the number of rows alone, and the bits of a row on no other row's
        values.
        """
        ...


class LmHead(Protocol):
    def __call__(self, hidden: Tensor, weight: WeightMatrix, addressable: int) -> Tensor:
        """``logits[t, v] = hidden[t] . W[v]`` for ``v < addressable``, and -inf for padding rows.

        hidden x[T, H]; weight prepared, V = rows. Returns f32[T, V]. Row-invariant.
        """
        ...


class PromptLogprobs(Protocol):
    def __call__(
        self,
        hidden: Tensor,
        weight: WeightMatrix,
        addressable: int,
        targets: Tensor,
        top: int,
    ) -> LogprobRows:
        """Log-probabilities of known next tokens, without keeping ``[n, V]`` logits.

        hidden x[n, H]; targets i32[n] (the token after each row); ``top`` >= 0 alternatives. The
        law is the softmax of :class:`LmHead`'s logits, by the prefill route.
        """
        ...
