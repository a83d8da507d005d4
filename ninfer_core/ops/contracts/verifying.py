"""Between the rounds that verify drafts: how rows resolve, what they leave, where drafts come.

A round's rows may go on from a round that is still in flight, of which the host knows nothing yet.
So each round leaves how its sequences go on in ``kept`` i32[L, 6 + K], a row of words by lane: the
token to run next (TOKEN) and where it stands (START), tokens that may still be produced after it
(REMAINING), rows that the round accepted (TAKEN) and the place of the last of them among the hidden
rows that rounds keep (LAST), how many rows to verify (LIVE), and from DRAFTS on the drafts.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.ops.contracts.values import TokenCounts

TOKEN, START, REMAINING, TAKEN, LAST, LIVE, DRAFTS = range(7)
"""Words of ``kept``."""


class Behind(enum.IntEnum):
    """What a row goes on from: what the host says; the token that a plain round in flight draws; or
    whatever comes of a speculative one in flight."""

    NOTHING = 0
    PLAIN = 1
    SPECULATIVE = 2


@dataclass(frozen=True, slots=True)
class GivenRows:
    """B rows of W columns as the host sends them: ``ids`` i32[B * W], a token and the drafts behind
    it, padded; i32[B]: ``starts`` (where the token stands), ``live`` (columns that count, 1..W),
    ``deltas`` (rotary position less place), ``slots`` of state, ``lanes``, ``remaining`` (tokens
    that may still be produced), ``most`` (drafts that are worth making next), ``behind`` (a
    :class:`Behind`) and ``places``, where among the kept hidden rows the first one goes."""

    ids: Tensor
    starts: Tensor
    live: Tensor
    deltas: Tensor
    slots: Tensor
    lanes: Tensor
    remaining: Tensor
    most: Tensor
    behind: Tensor
    places: Tensor


@dataclass(frozen=True, slots=True)
class ResolvedRows:
    """The same as they go on, on the device, in the form that a round's ops take.

    ``deltas``, ``most``, ``places`` and ``tables`` (the lanes) are those given, i32[B]; ``ids``,
    ``starts``, ``live`` and ``remaining`` are known now. ``slots`` i64[B]; for each of the B * W
    rows ``positions`` i32[3, B * W] for rotary tables, its lane in ``lanes`` i64[B * W], and in
    ``chosen`` i32[B * W] the position of the token drawn from it.
    """

    ids: Tensor
    starts: Tensor
    live: Tensor
    deltas: Tensor
    tables: Tensor
    remaining: Tensor
    most: Tensor
    places: Tensor
    slots: Tensor
    positions: Tensor
    lanes: Tensor
    chosen: Tensor


@dataclass(frozen=True, slots=True)
class VerifyAnswer:
    """What the host reads of a round, at fixed places: ``tokens`` and ``broken`` i32[B * W],
    ``accepted`` i32[B]."""

    tokens: Tensor
    broken: Tensor
    accepted: Tensor


@dataclass(frozen=True, slots=True)
class SettledRows:
    """Where the next drafts begin, at fixed places: ``tokens`` i32[B] the last token of each
    sequence, ``last`` i64[B] the place of the hidden row that drew it. For P places of w columns
    each, by place: ``starts``, ``live`` and ``tables`` (the lanes) i32[P, B], ``positions``
    i32[3, P, B * w] for rotary tables. Chains have P = K places of one column, a block one of
    K + 1.
    """

    tokens: Tensor
    last: Tensor
    starts: Tensor
    live: Tensor
    tables: Tensor
    positions: Tensor


@dataclass(frozen=True, slots=True)
class FoldRows:
    """B rows whose states are to be built, i32[B]: ``slots`` that they were verified from,
    ``targets``, ``lanes``; ``counts`` of accepted rows and ``last``, the place of the last hidden
    row, both -1 where the host does not know."""

    slots: Tensor
    targets: Tensor
    lanes: Tensor
    counts: Tensor
    last: Tensor


@dataclass(frozen=True, slots=True)
class Folds:
    """What a fold takes: ``slots`` and ``targets`` i64[B], ``counts`` i32[B]."""

    slots: Tensor
    targets: Tensor
    counts: Tensor


class ResolveRows(Protocol):
    def __call__(self, given: GivenRows, kept: Tensor, tokens: Tensor) -> ResolvedRows:
        """The rows as they go on.

        Behind nothing a row is as given. Behind a plain round its token is ``tokens[lane]``, i32[L]
        the lanes' own next ones. Behind a speculative one token, start, live, remaining and drafts
        are those of ``kept``. Row ``(b, w)`` has position ``starts[b] + deltas[b] + w``, three
        times, and draws the token at ``starts[b] + w + 1``.
        """
        ...


class SettleDrafts(Protocol):
    def __call__(
        self,
        tokens: Tensor,
        broken: Tensor,
        rows: ResolvedRows,
        answer: VerifyAnswer,
        settled: SettledRows,
        kept: Tensor,
        block: bool,
        counts: TokenCounts | None = None,
    ) -> None:
        """Accept drafts, say where up to K >= 1 new ones are made, and keep how rows go on.

        Accepted are the leading columns w with ``tokens[b, w] == ids[b, w + 1]`` and ``w + 1 <
        live[b]``, up to the first broken column, and none where column 0 is broken; the last token
        is that of the column behind them. With A accepted, that token stands at ``place = starts +
        A + 1``, its hidden row at ``places + A``, and ``wanted = min(remaining - A - 2, most)``
        within 0..K drafts have a use. A block is one place of K + 1 columns from ``place`` on, with
        ``wanted + 1`` live ones, none where nothing is wanted; a chain is K places of one column,
        the p-th at ``place + p``, live where ``wanted > p``. Positions are places plus ``deltas``,
        three times. K follows from the shapes of ``settled``.

        tokens i32[B * W] as drawn, broken bool[B * W].

        *Effect*: ``answer``; ``settled``; for each row's lane the words of ``kept`` up to LIVE:
        the last token, ``place``, ``remaining - A - 1``, ``A + 1``, ``places + A`` and 1; with
        ``counts`` one more for each of a lane's first A + 1 tokens.
        """
        ...


class KeepDrafts(Protocol):
    def __call__(
        self, drafts: Tensor, settled: SettledRows, kept: Tensor, answer: Tensor, block: bool
    ) -> None:
        """Keep drafts i32[B, n], n <= K, behind what was settled.

        *Effect*: of ``answer`` i32[B, K] the first n columns; of ``kept``, by the lanes of
        ``settled``, the first n drafts and LIVE: 1 and as many as there are live places of a chain,
        or the live columns of a block, at least 1.
        """
        ...


class ResolveFolds(Protocol):
    def __call__(
        self, rows: FoldRows, kept: Tensor, hidden: Tensor | None, pool: Tensor | None
    ) -> Folds:
        """What is to be folded, from ``kept`` where a row does not say.

        *Effect*: ``pool[targets] = hidden[last]`` where there are such, x[S, H] by state slot and
        x[N, H].
        """
        ...
