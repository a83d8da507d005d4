"""Scarcity for the fake Program: pages, state slots and host bytes, by owner."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import ResourceVector, Shortfall

POOL = "main"


@dataclass(frozen=True, slots=True)
class Amount:
    pages: int = 0
    slots: int = 0
    host: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.pages + other.pages, self.slots + other.slots, self.host + other.host)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.pages - other.pages, self.slots - other.slots, self.host - other.host)

    def vector(self) -> ResourceVector:
        pages = {POOL: self.pages} if self.pages else {}
        return ResourceVector(state_slots=self.slots, host_bytes=self.host, pages=pages)


class FakeAccounts:
    """What each owner holds and what is free. Nothing may become negative or be held unknown."""

    def __init__(self, total: Amount) -> None:
        self.total = total
        self.free = total
        self._held: dict[object, Amount] = {}

    def held(self, owner: object) -> Amount:
        return self._held.get(owner, Amount())

    def owners(self) -> set[object]:
        return {owner for owner, amount in self._held.items() if amount != Amount()}

    def shortfall(self, need: Amount) -> Shortfall | None:
        """The first axis that cannot give ``need`` now."""
        for axis, wanted, free in (
            ("state_slots", need.slots, self.free.slots),
            (POOL, need.pages, self.free.pages),
            ("host_bytes", need.host, self.free.host),
        ):
            if wanted > free:
                return Shortfall(axis, wanted, free)
        return None

    def take(self, owner: object, amount: Amount) -> None:
        if self.shortfall(amount) is not None:
            raise EngineFailure(f"{owner} takes {amount}, free are {self.free}")
        self.free = self.free - amount
        self._held[owner] = self.held(owner) + amount

    def give(self, owner: object, amount: Amount) -> None:
        left = self.held(owner) - amount
        if min(left.pages, left.slots, left.host) < 0:
            raise EngineFailure(f"{owner} gives back {amount} and holds {self.held(owner)}")
        self.free = self.free + amount
        self._held[owner] = left

    def give_all(self, owner: object) -> Amount:
        amount = self.held(owner)
        self.give(owner, amount)
        del self._held[owner]
        return amount

    def audit(self, living: set[object]) -> None:
        """Raises AssertionError when something is lost, or held by nobody who lives."""
        total = self.free
        for amount in self._held.values():
            total = total + amount
        assert total == self.total, f"{total} of {self.total} are accounted for"
        strangers = self.owners() - living
        assert not strangers, f"held by the dead: {strangers}"
