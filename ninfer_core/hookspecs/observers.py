"""Seam: observers that export metrics and request ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ninfer_core.hookspecs.markers import hookspec
from ninfer_core.hookspecs.records import Entry, Seam


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverEntry(Entry):
    """An observer; ``load`` loads a ``() -> observer`` factory.

    It will be fed from a thread of its own, never from the engine's worker.
    """

    load: str


class ObserverSpecs:
    """Hooks for plug-ins that watch an engine."""

    @hookspec
    def ninfer_observers(self) -> Iterable[ObserverEntry]:
        """Offer observers.

        Since: api 1.0.
        Called: once per process, when plug-ins load; active only when its plug-in is named.
        Returns: entries, which this version lists and refuses: no engine calls observers yet.
        Threading: main thread.
        Example::

            @hookimpl
            def ninfer_observers():
                yield ObserverEntry(name="counter", load="ninfer_counter.observer:open_observer")
        """
        return ()


OBSERVERS: Final = Seam(
    "ninfer_observers",
    "observer",
    ObserverEntry,
    active=True,
    unserved="this version of ninfer-core calls no observers yet",
)
