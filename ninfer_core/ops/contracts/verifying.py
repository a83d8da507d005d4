"""Between the draws of a round that verifies drafts and the drafts of the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class VerifiedRows:
    """B sequences of W columns each: ``ids`` i32[B * W], a token and the drafts behind it.

    i32[B]: ``starts`` (where the token stands), ``live`` (columns that count, 1..W), ``deltas``
    (rotary position less place), ``remaining`` (tokens that may still be produced) and ``most``
    (drafts that are worth making next).
    """

    ids: Tensor
    starts: Tensor
    live: Tensor
    deltas: Tensor
    remaining: Tensor
    most: Tensor


@dataclass(frozen=True, slots=True)
class VerifyAnswer:
    """What the host reads of a round, at fixed places: ``tokens`` and ``broken`` i32[B * W],
    ``accepted`` i32[B]."""

    tokens: Tensor
    broken: Tensor
    accepted: Tensor


@dataclass(frozen=True, slots=True)
class SettledRows:
    """Where the next drafts begin: ``tokens`` i32[B] the last token of each sequence, ``last``
    i64[B] the row of the round that drew it. For P places of w columns each, by place: ``starts``
    and ``live`` i32[P, B], ``positions`` i32[P, 3, B * w] for rotary tables.
    """

    tokens: Tensor
    last: Tensor
    starts: Tensor
    live: Tensor
    positions: Tensor


class SettleDrafts(Protocol):
    def __call__(
        self,
        tokens: Tensor,
        broken: Tensor,
        rows: VerifiedRows,
        answer: VerifyAnswer,
        drafts: int,
        block: bool,
    ) -> SettledRows:
        """Accept drafts and say where up to ``drafts`` K >= 1 new ones are made.

        Accepted are the leading columns w with ``tokens[b, w] == ids[b, w + 1]`` and ``w + 1 <
        live[b]``, up to the first broken column, and none where column 0 is broken; the last token
        is that of the column behind them. With A accepted, that token stands at ``place = starts +
        A + 1``, and ``wanted = min(remaining - A - 2, most)`` within
        0..K drafts have a use. A block is one place of K + 1 columns from ``place`` on, with
        ``wanted + 1`` live ones, none where nothing is wanted; a chain is K places of one column,
        the p-th at ``place + p``, live where ``wanted > p``. Positions are places plus ``deltas``,
        three times.

        tokens i32[B * W] as drawn, broken bool[B * W].

        *Effect*: ``answer``.
        """
        ...
