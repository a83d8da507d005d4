"""The checkpoints that exist for the engine: where they lie, whose they are, what is newest.

Occupancy lives in the Program alone; facts are kept as it returned them and never added up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from ninfer_core.contract.cache import Provenance
from ninfer_core.contract.checkpoints import CheckpointFacts
from ninfer_core.contract.frontend import RestoreKind
from ninfer_core.contract.resources import CheckpointRef
from ninfer_core.engine.prefix_index import PieceHash, PrefixIndex
from ninfer_core.engine.token_path import TokenPath

SHARED_KINDS = frozenset({RestoreKind.SYSTEM_AND_TOOLS, RestoreKind.EXPLICIT})
"""Points that belong to no one conversation, and that no later turn supersedes."""

SessionKey = tuple[str | None, str]
"""A salt and a caller's session key under it."""

MAX_REMEMBERED = 256
"""Given-up points of which the digest is remembered."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Continuation:
    """The private owner of a conversation's restore points. ``newest`` is the latest ticket that
    published one, ``claimed`` the latest that went on from one; ``name`` its session key. It lives
    as long as a request or a point of it does."""

    name: SessionKey | None
    claimed: int
    newest: int = 0
    points: set[CheckpointRef] = field(default_factory=set)


@dataclass(slots=True, eq=False, kw_only=True)
class CatalogueEntry:
    """One checkpoint: the facts that the Program stated, its place and its owner. ``stays`` says
    that its copy to the host came to nothing."""

    ref: CheckpointRef
    facts: CheckpointFacts
    kind: RestoreKind
    order: int
    digest: bytes
    owner: Continuation
    superseded: bool = False
    stays: bool = False

    def provenance(self) -> Provenance:
        return Provenance(self.kind, self.order, self.digest, self.superseded)


class Catalogue:
    """Entries by reference, by path and by owner."""

    def __init__(self, digest: PieceHash = hash) -> None:
        self._entries: dict[CheckpointRef, CatalogueEntry] = {}
        self._index: PrefixIndex[CheckpointRef] = PrefixIndex(digest)
        self._sessions: WeakValueDictionary[SessionKey, Continuation] = WeakValueDictionary()
        self._given_up: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[CatalogueEntry]:
        return iter(self._entries.values())

    def __contains__(self, ref: CheckpointRef) -> bool:
        return ref in self._entries

    def __getitem__(self, ref: CheckpointRef) -> CatalogueEntry:
        return self._entries[ref]

    def on_path(self, path: TokenPath, limit: int) -> list[CatalogueEntry]:
        """The entries on ``path`` up to ``limit``, ascending by frontier."""
        return [self._entries[ref] for _, ref in self._index.matches(path, limit)]

    def fallback(self, ref: CheckpointRef) -> int:
        """Where a prompt on this path starts if ``ref`` is deleted."""
        return self._index.above(ref)

    def deepest(self, path: TokenPath, limit: int) -> int:
        found = self._index.matches(path, limit)
        return found[-1][0] if found else 0

    def owner_of(
        self, key: SessionKey | None, source: CatalogueEntry | None, ticket: int
    ) -> Continuation:
        """The continuation that request ``ticket`` goes on with: the one its session key is bound
        to; else that of its private source if nobody went on from there since; else a new one."""
        owner = self.session(key)
        if owner is None and source is not None and self.continues(key, source):
            owner = source.owner
        if owner is None:
            owner = Continuation(key, ticket)
        if key is not None:
            self._sessions[key] = owner
            owner.name = key
        owner.claimed = max(owner.claimed, ticket)
        return owner

    def continues(self, key: SessionKey | None, source: CatalogueEntry) -> bool:
        """Whether who begins with ``source`` goes on with the continuation that it belongs to, and
        with nobody else's: its session is bound to it, or it has none and nobody went on yet."""
        owner = self.session(key)
        if owner is not None:
            return source.owner is owner
        there = source.owner
        private = source.kind not in SHARED_KINDS
        return private and there.name is None and there.claimed <= source.order

    def publish(self, entry: CatalogueEntry, path: TokenPath) -> None:
        """Take in a new checkpoint. Points of older requests of the same continuation are
        superseded by it; what an older request publishes late is superseded at once."""
        self._index.add(path, entry.facts.frontier, entry.ref)
        self._entries[entry.ref] = entry
        self._given_up.pop(entry.digest, None)
        owner = entry.owner
        owner.points.add(entry.ref)
        if entry.kind in SHARED_KINDS:
            return
        entry.superseded = entry.order < owner.newest
        if entry.order > owner.newest:
            owner.newest = entry.order
            for ref in owner.points:
                older = self._entries[ref]
                older.superseded = older.order < entry.order and older.kind not in SHARED_KINDS

    def discard(self, ref: CheckpointRef, *, given_up: bool = False) -> None:
        """``ref`` is gone; ``given_up`` remembers that it was there."""
        entry = self._entries.pop(ref, None)
        if entry is None:
            return
        self._index.remove(ref)
        entry.owner.points.discard(ref)
        if given_up:
            self._given_up[entry.digest] = entry.facts.frontier
            if len(self._given_up) > MAX_REMEMBERED:
                self._given_up.popitem(last=False)

    def clear(self) -> list[CheckpointRef]:
        """Forget everything; returns what was there."""
        refs = list(self._entries)
        for ref in refs:
            self.discard(ref)
        return refs

    def session(self, key: SessionKey | None) -> Continuation | None:
        return self._sessions.get(key) if key is not None else None

    def bound(self, key: SessionKey) -> CatalogueEntry | None:
        """What session ``key`` stands for: the deepest point of its newest request."""
        owner = self.session(key)
        entries = [self._entries[ref] for ref in owner.points] if owner is not None else []
        return max(entries, key=lambda e: (e.order, e.facts.frontier), default=None)

    def was_given_up(self, path: TokenPath) -> bool:
        """Whether a point before the last token of ``path`` was there once."""
        frontiers = {f for f in self._given_up.values() if f < len(path)}
        named = path.digests(frontiers)
        return any(self._given_up.get(name) == at for at, name in named.items())

    def elsewhere(self, path: TokenPath) -> bool:
        """Whether another template or mode of the same salt keeps a point on these tokens."""
        template, salt = path.namespace
        others: Iterable[tuple[str, str | None]] = [
            space for space in self._index.namespaces() if space[0] != template and space[1] == salt
        ]
        return any(self._index.matches(path, len(path) - 1, other) for other in others)
