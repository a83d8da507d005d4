"""Seam: policies of the context cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ninfer_core.hookspecs.markers import hookspec
from ninfer_core.hookspecs.records import Entry, Seam


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicyEntry(Entry):
    """A cache policy; ``load`` loads a ``() -> CachePolicy`` factory.

    A policy sees facts, never stores.
    """

    load: str


class CacheSpecs:
    """Hooks for plug-ins that decide what the context cache keeps."""

    @hookspec
    def ninfer_cache_policies(self) -> Iterable[CachePolicyEntry]:
        """Offer cache policies.

        Since: api 1.0.
        Called: once per process, when plug-ins load.
        Returns: entries; ``name`` is what ``EngineOptions.cache_policy`` takes.
        Threading: main thread at load; the policy itself runs on the engine worker thread only.
        Example::

            @hookimpl
            def ninfer_cache_policies():
                yield CachePolicyEntry(name="off", load="ninfer_core.engine.policies:OffPolicy")
        """
        return ()


CACHE_POLICIES: Final = Seam("ninfer_cache_policies", "cache policy", CachePolicyEntry)
