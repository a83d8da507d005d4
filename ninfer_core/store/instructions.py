"""Device work that a bookkeeping step requires: the store decides, the Program carries it out.

Instructions are carried out in the order given, on the compute lane, before the next launch. Lane
order then protects them: a unit that is freed later can only be rewritten by later work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class CopyPage:
    """Copy the first ``columns`` columns of page ``source`` to page ``target``, on every plane."""

    pool: str
    source: int
    target: int
    columns: int


@dataclass(frozen=True, slots=True)
class CopyState:
    """Copy the whole state image in slot ``source`` to slot ``target``, on every plane."""

    pool: str
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class ClearState:
    """Set the state image in ``slot`` to the initial state (all zero)."""

    pool: str
    slot: int


class TableDelta(NamedTuple):
    """Entry ``column`` of execution row ``row`` now names physical page ``page``."""

    row: int
    column: int
    page: int
