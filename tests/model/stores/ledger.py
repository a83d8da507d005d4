"""What must lie where, said independently of the Program: pages with holders, slots, host bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.model.stores.units import BYTES

RING = 2
"""Slots of a running sequence."""


def pages_of(tokens: int) -> int:
    return -(-tokens // 64)


@dataclass(eq=False)
class Page:
    """``host`` counts the columns that a host copy covers; 0 without one."""

    device: bool = True
    host: int = 0


@dataclass(eq=False)
class Owner:
    """A sequence (``runs``), a checkpoint, or a snapshot. ``slots`` on the device, ``image`` on the
    host; ``tokens`` were executed and lie on the first of ``pages``."""

    tokens: list[int]
    pages: list[Page]
    slots: int = 0
    image: bool = False
    runs: bool = False
    fronts: int = 0

    def columns(self, index: int) -> int:
        return max(0, min(64, len(self.tokens) - 64 * index))


@dataclass
class Ledger:
    """All owners, and what the open transaction has reserved and copies."""

    slots: int
    pages: int
    host: int
    owners: list[Owner] = field(default_factory=list)
    reserved: tuple[int, int, int] = (0, 0, 0)
    relied: list[Page] = field(default_factory=list)
    pinned: list[Page] = field(default_factory=list)

    def all_pages(self) -> list[Page]:
        seen = {id(page): page for owner in self.owners for page in owner.pages}
        return list((seen | {id(page): page for page in self.pinned}).values())

    def settle(self) -> None:
        """The open transaction holds nothing any more."""
        self.reserved, self.relied, self.pinned = (0, 0, 0), [], []
        self.tidy()

    def free(self) -> tuple[int, int, int]:
        """Slots, pages and host bytes that nobody holds."""
        pages = self.all_pages()
        images = sum(owner.image for owner in self.owners) + sum(p.host > 0 for p in pages)
        used = (
            sum(owner.slots for owner in self.owners),
            sum(page.device for page in pages),
            images * BYTES,
        )
        totals = (self.slots, self.pages, self.host)
        return tuple(
            total - held - kept
            for total, held, kept in zip(totals, used, self.reserved, strict=True)
        )  # type: ignore[return-value]

    def holders(self, page: Page) -> list[Owner]:
        return [owner for owner in self.owners if any(page is one for one in owner.pages)]

    def tidy(self) -> None:
        """A page lies on the device while somebody who is there needs it or a copy reads it, on the
        host while somebody who is there needs it or a save relies on it."""
        pinned = {id(page) for page in self.pinned}
        relied = {id(page) for page in self.relied}
        for page in self.all_pages():
            holders = self.holders(page)
            there = any(owner.slots for owner in holders)
            if holders and not there and id(page) not in pinned and page.host:
                page.device = False
            wanted = any(owner.image for owner in holders) or id(page) in relied
            if page.device and not wanted:
                page.host = 0

    def grow(self, owner: Owner, mapped: int) -> int:
        """Map pages until ``mapped``; says how many."""
        missing = max(0, mapped - len(owner.pages))
        owner.pages += [Page() for _ in range(missing)]
        return missing

    def unsaved(self, owner: Owner) -> list[Page]:
        """Pages that a copy of ``owner`` to the host must move."""
        count = pages_of(len(owner.tokens))
        return [
            page
            for index, page in enumerate(owner.pages[:count])
            if page.host < owner.columns(index)
        ]

    def save(self, owner: Owner) -> None:
        for index, page in enumerate(owner.pages[: pages_of(len(owner.tokens))]):
            if page.host < owner.columns(index):
                page.host = owner.columns(index)
        owner.image = True

    def own_tail(self, owner: Owner, frontier: int) -> bool:
        """Whether ``owner`` may write on from ``frontier`` without a page of its own."""
        if frontier % 64 == 0:
            return True
        index = frontier // 64
        page = owner.pages[index]
        others = [one for one in self.holders(page) if one is not owner]
        writes = any(one.runs and len(one.tokens) < 64 * (index + 1) for one in others)
        return not writes and all(one.columns(index) <= frontier % 64 for one in others)
