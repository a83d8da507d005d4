"""How a captured decode round takes its inputs and leaves its results, without a copy.

Host and device share two pinned rings of ``depth`` places. The host writes place ``n % depth`` of
the ingress ring before it enqueues round n; the round's first op reads it, its last op writes the
egress place and, after everything else is visible, the place's flag. Which round it is comes from
a counter on the device, so that one captured graph serves every round.

Ingress words i32: header ``round, rows, table changes, 0``; then per row ``lane, token (-1: the
lane's own next token), start, slot, target, rope delta, 0, 0`` for up to L rows; then per change
``lane, index, page`` for up to E changes. Egress words: ``flag (round + 1), error, rows, 0``; then
per row ``token, broken``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.ops.contracts.values import TokenCounts

HEADER_WORDS = 4
ROW_WORDS = 8
CHANGE_WORDS = 3
EGRESS_HEADER_WORDS = 4
EGRESS_ROW_WORDS = 2

ROUND_MISMATCH = 1
"""Egress ``error``: the place holds another round, or another number of rows, than the one run."""


@dataclass(frozen=True, slots=True)
class RoundRing:
    """``ingress`` i32[depth, 4 + 8 L + 3 E] and ``egress`` i32[depth, 4 + 2 L] lie in pinned host
    memory, ``counter`` i32[1] on the device: the round that runs next. ``lanes`` L, ``changes`` E.
    """

    ingress: Tensor
    egress: Tensor
    counter: Tensor
    lanes: int
    changes: int


@dataclass(frozen=True, slots=True)
class LaneTables:
    """What the device keeps per lane between rounds: ``tokens`` i32[L] the next token to run,
    ``block_tables`` i32[L, max_pages]."""

    tokens: Tensor
    block_tables: Tensor


@dataclass(frozen=True, slots=True)
class RoundRows:
    """The B rows of a round at fixed addresses on the device, written by the round's first op.

    ``ids`` i32[B], ``lanes`` i64[B], ``table_rows`` i32[B] (the lanes again), ``starts`` i32[B],
    ``live`` i32[B] (1 each), ``slots`` and ``targets`` i64[B], ``positions`` i32[3, B] for rotary
    tables (start + rope delta), ``chosen`` i32[B] = start + 1, the position of the token drawn.
    """

    ids: Tensor
    lanes: Tensor
    table_rows: Tensor
    starts: Tensor
    live: Tensor
    slots: Tensor
    targets: Tensor
    positions: Tensor
    chosen: Tensor


class BeginRound(Protocol):
    def __call__(self, ring: RoundRing, tables: LaneTables, rows: RoundRows) -> None:
        """*Effect*: applies the table changes, fills ``rows`` from the ingress place of the counter
        and clears ``error`` of the egress place, or sets it to ROUND_MISMATCH."""
        ...


class PublishRound(Protocol):
    def __call__(
        self,
        ring: RoundRing,
        tables: LaneTables,
        rows: RoundRows,
        counts: TokenCounts,
        tokens: Tensor,
        broken: Tensor,
    ) -> None:
        """tokens i32[B], broken bool[B].

        *Effect*: each lane's next token and its count of that token; the egress rows; the flag,
        last; then the counter advances.
        """
        ...
