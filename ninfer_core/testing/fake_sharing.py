"""Pages of the fake Program that several owners read: chains of segments, counted by users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.testing.fake_accounts import Amount, FakeAccounts


@dataclass(slots=True, eq=False)
class Segment:
    """Full pages behind those of ``parent``. ``users`` are sequences, paused ones, checkpoints and
    segments behind this one."""

    pages: int
    parent: Segment | None
    users: int = 1

    @property
    def total(self) -> int:
        return self.pages + (self.parent.total if self.parent is not None else 0)


Chain = Segment | None


class SharedPages:
    """Every segment is an owner in the accounts while somebody uses it."""

    def __init__(self, accounts: FakeAccounts) -> None:
        self._accounts = accounts
        self.segments: list[Segment] = []

    def append(self, chain: Chain, pages: int) -> Chain:
        """Take ``pages`` more behind ``chain``; its user becomes the user of the result."""
        if pages == 0:
            return chain
        segment = Segment(pages, chain)
        self.segments.append(segment)
        self._accounts.take(segment, Amount(pages=pages))
        return segment

    def join(self, chain: Chain) -> Chain:
        if chain is not None:
            chain.users += 1
        return chain

    def leave(self, chain: Chain) -> None:
        """One user less; what nobody uses is free again."""
        while chain is not None:
            chain.users -= 1
            if chain.users < 0:
                raise EngineFailure("shared pages were let go twice")
            if chain.users:
                return
            self._accounts.give_all(chain)
            self.segments.remove(chain)
            chain = chain.parent

    def freed(self, chain: Chain) -> int:
        """Pages that would be free if one user of ``chain`` left."""
        pages = 0
        while chain is not None and chain.users == 1:
            pages += chain.pages
            chain = chain.parent
        return pages

    def audit(self, users: Iterable[Chain]) -> None:
        """Raises AssertionError unless exactly ``users`` and the segments use the segments."""
        chains = [*users, *(segment.parent for segment in self.segments)]
        for segment in self.segments:
            uses = sum(chain is segment for chain in chains)
            assert uses == segment.users, f"{uses} users of pages that count {segment.users}"


def links(chain: Chain) -> Iterator[Segment]:
    """The segments of a chain, from its end."""
    while chain is not None:
        yield chain
        chain = chain.parent


def total(chain: Chain) -> int:
    return chain.total if chain is not None else 0
