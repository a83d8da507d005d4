"""Who needs KV pages on the host, and which of them need them nowhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ninfer_core.store.errors import require
from ninfer_core.store.logical_pages import LogicalPage


class HostHolders:
    """Counts by page of frozen histories that lie whole on the host: snapshots and checkpoints.

    A holder *keeps* its pages on the host. One that is *alone* there has no part on the device,
    so that a page of which every reference is alone need not lie on the device either. A save that
    is on its way relies on pages that lay on the host before it, and keeps them there until then.
    """

    def __init__(self) -> None:
        self._keep: Counter[int] = Counter()
        self._alone: Counter[int] = Counter()
        self._relied: Counter[int] = Counter()
        self._idle: dict[int, LogicalPage] = {}

    def hold(self, pages: Iterable[LogicalPage], *, alone: bool) -> None:
        """One more holder of ``pages``."""
        pages = tuple(pages)
        self._keep.update([page.generation for page in pages])
        if alone:
            self.leave_device(pages)

    def unhold(self, pages: Iterable[LogicalPage], *, alone: bool) -> None:
        """One holder less; ``alone`` as it was at last."""
        numbers = [page.generation for page in pages]
        _less(self._keep, numbers)
        if alone:
            _less(self._alone, numbers)

    def leave_device(self, pages: Iterable[LogicalPage]) -> None:
        """A holder of ``pages`` has no part on the device any more."""
        numbered = [(page.generation, page) for page in pages]
        self._alone.update([number for number, _ in numbered])
        self._idle.update(numbered)

    def arrived(self, pages: Iterable[LogicalPage]) -> None:
        """These lie on the device again."""
        self._idle.update((page.generation, page) for page in pages)

    def keeps(self, page: LogicalPage, besides: int = 0) -> bool:
        """Whether somebody wants ``page`` on the host, ``besides`` so many holders."""
        number = page.generation
        return self._keep.get(number, 0) + self._relied.get(number, 0) > besides

    def keepers(self, page: LogicalPage) -> int:
        """Holders of ``page`` that want it on the host."""
        return self._keep[page.generation]

    def alone(self, page: LogicalPage) -> int:
        """References of ``page`` that have no part on the device."""
        return self._alone[page.generation]

    def rely(self, pages: Iterable[LogicalPage]) -> None:
        """A save begins that copies everything but ``pages``."""
        self._relied.update(page.generation for page in pages)

    def relied(self, pages: Iterable[LogicalPage]) -> None:
        """It has ended."""
        _less(self._relied, [page.generation for page in pages])

    def deserted(self, page: LogicalPage, leaving: int = 0, gone: int = 0) -> bool:
        """Whether every reference of ``page`` is alone on the host, once ``leaving`` more holders
        are and ``gone`` references, which are not, have ended."""
        refs = len(page.holds) + (page.writer is not None)
        return refs - gone == self._alone.get(page.generation, 0) + leaving

    def idle(self) -> list[LogicalPage]:
        """Live pages on the device of which every reference is alone on the host."""
        self._idle = {
            number: page
            for number, page in self._idle.items()
            if page.alive and page.device is not None and self._alone[number]
        }
        return [page for page in self._idle.values() if self.deserted(page)]

    def recount(self, holders: Iterable[tuple[Iterable[LogicalPage], bool]]) -> None:
        """Only these histories lie on the host from now on."""
        self._keep.clear()
        self._alone.clear()
        for pages, is_alone in holders:
            self.hold(pages, alone=is_alone)

    def check(self, holders: Iterable[tuple[Iterable[LogicalPage], bool]]) -> None:
        """Raise StoreInvariantError unless exactly these histories, alone or not, are counted, and
        each lies whole on the host."""
        keep, alone = Counter[int](), Counter[int]()
        for pages, is_alone in holders:
            for page in pages:
                require(page.host is not None, f"page {page.generation} is kept on the host")
                keep[page.generation] += 1
                alone[page.generation] += is_alone
        require(+keep == +self._keep, "pages that are kept on the host are counted")
        require(+alone == +self._alone, "pages that are kept on the host alone are counted")


def _less(counts: Counter[int], numbers: Iterable[int]) -> None:
    """One less of each of ``numbers``."""
    for number in numbers:
        left = counts[number] - 1
        if left:
            counts[number] = left
        else:
            counts.pop(number)
