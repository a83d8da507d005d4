"""Handles with owner and generation, and the table that checks them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ninfer_core.store.errors import StaleHandleError, require


class HandleLike(Protocol):
    """Any immutable value that carries these three facts may serve as a handle."""

    @property
    def owner(self) -> int: ...

    @property
    def index(self) -> int: ...

    @property
    def generation(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Handle:
    """``owner`` is the issuing table, ``index`` its slot, ``generation`` the use of that slot."""

    owner: int
    index: int
    generation: int


V = TypeVar("V")
H = TypeVar("H", bound=HandleLike)

_owner_ids = itertools.count(1)


class HandleTable(Generic[V, H]):
    """Values behind checked handles of one type.

    Each table has an owner number of its own, unique in the process, so that a handle of another
    table (or of another engine's) is refused just like one of an earlier generation.
    """

    def __init__(self, name: str, make: Callable[[int, int, int], H]) -> None:
        self.name = name
        self.owner = next(_owner_ids)
        self._make = make
        self._values: list[V | None] = []
        self._generations: list[int] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._values) - len(self._free)

    def insert(self, value: V) -> H:
        index = self._free.pop() if self._free else self._grow()
        self._values[index] = value
        return self._make(self.owner, index, self._generations[index])

    def get(self, handle: HandleLike) -> V:
        """The value. Raises :class:`StaleHandleError` for a foreign or outdated handle."""
        index = handle.index
        if handle.owner == self.owner and 0 <= index < len(self._values):
            value = self._values[index]
            if value is not None and self._generations[index] == handle.generation:
                return value
        raise StaleHandleError(f"stale {self.name} handle: {handle!r}")

    def remove(self, handle: HandleLike) -> V:
        """Take the value out; from now on every copy of the handle is stale."""
        value = self.get(handle)
        index = handle.index
        self._values[index] = None
        self._generations[index] += 1
        self._free.append(index)
        return value

    def values(self) -> Iterator[V]:
        """Live values in index order."""
        return (value for value in self._values if value is not None)

    def items(self) -> Iterator[tuple[H, V]]:
        """Handles and live values in index order."""
        for index, value in enumerate(self._values):
            if value is not None:
                yield self._make(self.owner, index, self._generations[index]), value

    def check(self) -> None:
        free = set(self._free)
        require(len(free) == len(self._free), f"{self.name} handles: an index is free twice")
        for index, value in enumerate(self._values):
            require(
                (value is None) == (index in free),
                f"{self.name} handles: index {index} is free exactly when it is empty",
            )

    def _grow(self) -> int:
        self._values.append(None)
        self._generations.append(1)
        return len(self._values) - 1
