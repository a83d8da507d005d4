"""The record of one logical KV page, and what its numbers mean.

See :mod:`ninfer_core.store.logical_pages`, which alone changes records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from ninfer_core.contract.resources import PAGE_TOKENS
from ninfer_core.store.errors import require
from ninfer_core.store.host_arena import Extent
from ninfer_core.store.units import Unit


def pages_for(tokens: int) -> int:
    """Pages that ``tokens`` columns occupy."""
    return -(-tokens // PAGE_TOKENS)


def columns_on(index: int, tokens: int) -> int:
    """Columns of the first ``tokens`` that lie on page ``index`` of a directory: 0..64."""
    return max(0, min(PAGE_TOKENS, tokens - index * PAGE_TOKENS))


L = TypeVar("L", Unit, Extent)


class Replica(Generic[L]):
    """The first ``coverage`` columns of a page's content of ``epoch``, at one location."""

    __slots__ = ("coverage", "epoch", "location")

    def __init__(self, location: L, epoch: int, coverage: int) -> None:
        self.location: L = location
        self.epoch = epoch
        self.coverage = coverage

    def clip(self, epoch: int, columns: int) -> None:
        self.epoch = epoch
        self.coverage = min(self.coverage, columns)


class LogicalPage:
    """One record; only :class:`LogicalPages` changes it. ``active`` counts running spaces."""

    __slots__ = (
        "active",
        "alive",
        "committed",
        "device",
        "epoch",
        "generation",
        "holds",
        "host",
        "pins",
        "writer",
    )

    def __init__(self, generation: int, unit: Unit, writer: int) -> None:
        self.generation = generation
        self.alive = True
        self.epoch = 1
        self.committed = 0
        self.writer: int | None = writer
        self.holds: list[int] = []
        self.pins: list[int] = []
        self.active = 0
        self.device: Replica[Unit] | None = Replica(unit, 1, 0)
        self.host: Replica[Extent] | None = None

    @property
    def refs(self) -> int:
        """Address spaces that have this page in their directory."""
        return len(self.holds) + (self.writer is not None)

    @property
    def protected(self) -> int:
        """Columns that some holder or copy needs: they may be neither rewritten nor dropped."""
        return max(self.holds + self.pins, default=0)

    def on_device(self, columns: int) -> bool:
        """A device replica of this epoch covers ``columns``."""
        return _covers(self.device, self.epoch, columns)

    def on_host(self, columns: int) -> bool:
        """A host replica of this epoch covers ``columns``."""
        return _covers(self.host, self.epoch, columns)


def _covers(replica: Replica[Unit] | Replica[Extent] | None, epoch: int, columns: int) -> bool:
    return replica is not None and replica.epoch == epoch and replica.coverage >= columns


class PagePin(NamedTuple):
    """A copy in flight needs the first ``columns`` of ``page`` unchanged."""

    page: LogicalPage
    columns: int


def off_host(pages: Sequence[LogicalPage], tokens: int) -> list[LogicalPage]:
    """Of the pages of the first ``tokens`` those that no host replica covers."""
    return [
        page
        for page, columns in zip(pages, columns_of(tokens), strict=False)
        if (host := page.host) is None or host.coverage < columns or host.epoch != page.epoch
    ]


def off_device(pages: Sequence[LogicalPage], tokens: int) -> list[LogicalPage]:
    """Of the pages of the first ``tokens`` those that no device replica covers."""
    return [
        page
        for page, columns in zip(pages, columns_of(tokens), strict=False)
        if (there := page.device) is None or there.coverage < columns or there.epoch != page.epoch
    ]


def columns_of(tokens: int) -> list[int]:
    """Columns of the first ``tokens`` on each page of a directory."""
    full, rest = divmod(tokens, PAGE_TOKENS)
    return [PAGE_TOKENS] * full + [rest] * bool(rest)


def check_page(page: LogicalPage, pool: str) -> None:
    name = f"{pool}: page {page.generation}"
    needs = [*page.holds, *page.pins]
    require(page.alive and bool(page.refs or page.pins), f"{name} lives while it is referenced")
    require(0 <= page.committed <= PAGE_TOKENS, f"{name} has 0..64 committed columns")
    require(all(0 <= n <= page.committed for n in needs), f"{name}: needs are committed")
    require(0 not in page.holds, f"{name}: a hold needs at least one column")
    require(page.writer is None or page.committed < PAGE_TOKENS, f"{name}: no writer when full")
    require(
        page.on_device(page.protected) or page.on_host(page.protected),
        f"{name}: a valid replica covers the protected columns",
    )
    require(
        (page.writer is None and not page.active) or page.on_device(page.committed),
        f"{name}: a page in use lies on the device",
    )
    for replica in (page.device, page.host):
        covered = replica is None or replica.coverage <= page.committed
        require(covered, f"{name}: no replica covers more than is committed")
