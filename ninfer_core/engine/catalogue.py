"""The checkpoints that exist for the engine: where they lie, whose they are, what is newest.

Occupancy lives in the Program alone; facts are kept as it returned them and never added up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from weakref import WeakSet, WeakValueDictionary

from ninfer_core.contract.cache import Provenance
from ninfer_core.contract.checkpoints import CheckpointFacts
from ninfer_core.contract.errors import CacheFault
from ninfer_core.contract.frontend import RestoreKind
from ninfer_core.contract.resources import CheckpointRef
from ninfer_core.contract.reuse import Tier
from ninfer_core.engine.cache_faults import blamed_on_cache
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
    that its copy to the host came to nothing; ``serial`` counts the published."""

    ref: CheckpointRef
    facts: CheckpointFacts
    kind: RestoreKind
    order: int
    digest: bytes
    owner: Continuation
    superseded: bool = False
    stays: bool = False
    serial: int = 0

    def provenance(self) -> Provenance:
        return Provenance(self.kind, self.order, self.digest, self.superseded)


class Catalogue:
    """Entries by reference, by path and by owner."""

    def __init__(self, digest: PieceHash = hash) -> None:
        self._entries: dict[CheckpointRef, CatalogueEntry] = {}
        self._digest = digest
        self._index: PrefixIndex[CheckpointRef] = PrefixIndex(digest)
        self._owners: WeakSet[Continuation] = WeakSet()
        self._sessions: WeakValueDictionary[SessionKey, Continuation] = WeakValueDictionary()
        self._given_up: OrderedDict[bytes, int] = OrderedDict()
        self._tiers: dict[Tier, OrderedDict[CheckpointRef, None]] = {
            tier: OrderedDict() for tier in Tier
        }
        self._published = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[CatalogueEntry]:
        return iter(self._entries.values())

    def __contains__(self, ref: CheckpointRef) -> bool:
        return ref in self._entries

    @blamed_on_cache
    def __getitem__(self, ref: CheckpointRef) -> CatalogueEntry:
        return self._entries[ref]

    @blamed_on_cache
    def on_path(self, path: TokenPath, limit: int) -> list[CatalogueEntry]:
        """The entries on ``path`` up to ``limit``, ascending by frontier."""
        found = [(at, self._entries[ref]) for at, ref in self._index.matches(path, limit)]
        for at, entry in found:
            if entry.facts.frontier != at:
                raise CacheFault(f"{entry.ref} of {entry.facts.frontier} tokens is indexed at {at}")
        return [entry for _, entry in found]

    @blamed_on_cache
    def fallback(self, ref: CheckpointRef) -> int:
        """Where a prompt on this path starts if ``ref`` is deleted."""
        return self._index.above(ref)

    @blamed_on_cache
    def deepest(self, path: TokenPath, limit: int) -> int:
        found = self._index.matches(path, limit)
        return found[-1][0] if found else 0

    @blamed_on_cache
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
            self._owners.add(owner)
        if key is not None:
            self._sessions[key] = owner
            owner.name = key
        owner.claimed = max(owner.claimed, ticket)
        return owner

    @blamed_on_cache
    def continues(self, key: SessionKey | None, source: CatalogueEntry) -> bool:
        """Whether who begins with ``source`` goes on with the continuation that it belongs to, and
        with nobody else's: its session is bound to it, or it has none and nobody went on yet."""
        owner = self.session(key)
        if owner is not None:
            return source.owner is owner
        there = source.owner
        private = source.kind not in SHARED_KINDS
        return private and there.name is None and there.claimed <= source.order

    @blamed_on_cache
    def publish(self, entry: CatalogueEntry, path: TokenPath) -> None:
        """Take in a new checkpoint. Points of older requests of the same continuation are
        superseded by it; what an older request publishes late is superseded at once."""
        self._index.add(path, entry.facts.frontier, entry.ref)
        self._entries[entry.ref] = entry
        self._published += 1
        entry.serial = self._published
        self.place(entry.ref, entry.facts)
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

    @blamed_on_cache
    def discard(self, ref: CheckpointRef, *, given_up: bool = False) -> None:
        """``ref`` is gone; ``given_up`` remembers that it was there."""
        entry = self._entries.pop(ref, None)
        if entry is None:
            return
        for above in self._index.nearest(ref)[1] if given_up else ():
            self._bring_forward(above)
        self._index.remove(ref)
        entry.owner.points.discard(ref)
        for places in self._tiers.values():
            places.pop(ref, None)
        if given_up:
            self._remember(entry)

    @blamed_on_cache
    def place(self, ref: CheckpointRef, facts: CheckpointFacts) -> None:
        """``ref`` lies where ``facts`` say."""
        self._entries[ref].facts = facts
        for tier, places in self._tiers.items():
            if tier in facts.replicas:
                places.setdefault(ref)
            else:
                places.pop(ref, None)

    @blamed_on_cache
    def put_off(self, ref: CheckpointRef) -> None:
        """Look at ``ref`` last: it was used, or nothing can be had of it now."""
        for places in self._tiers.values():
            if ref in places:
                places.move_to_end(ref)

    def oldest(self, tier: Tier) -> Iterator[CatalogueEntry]:
        """What lies there: least recently used first, and before that what stood above something
        that was given up, since it may hold room alone from then on."""
        return (self._entries[ref] for ref in self._tiers[tier])

    def _bring_forward(self, ref: CheckpointRef) -> None:
        for places in self._tiers.values():
            if ref in places:
                places.move_to_end(ref, last=False)

    def clear(self) -> list[CheckpointRef]:
        """Forget everything, whatever is wrong with it; returns what was there."""
        entries, self._entries = self._entries, {}
        self._index = PrefixIndex(self._digest)
        for owner in self._owners:
            owner.points.clear()
        for places in self._tiers.values():
            places.clear()
        for entry in entries.values():
            self._remember(entry)
        return list(entries)

    def _remember(self, entry: CatalogueEntry) -> None:
        self._given_up[entry.digest] = entry.facts.frontier
        if len(self._given_up) > MAX_REMEMBERED:
            self._given_up.popitem(last=False)

    def session(self, key: SessionKey | None) -> Continuation | None:
        return self._sessions.get(key) if key is not None else None

    @blamed_on_cache
    def bound(self, key: SessionKey) -> CatalogueEntry | None:
        """What session ``key`` stands for: the deepest point of its newest request."""
        owner = self.session(key)
        entries = [self._entries[ref] for ref in owner.points] if owner is not None else []
        return max(entries, key=lambda e: (e.order, e.facts.frontier), default=None)

    @blamed_on_cache
    def was_given_up(self, path: TokenPath) -> bool:
        """Whether a point before the last token of ``path`` was there once."""
        frontiers = {f for f in self._given_up.values() if f < len(path)}
        named = path.digests(frontiers)
        return any(self._given_up.get(name) == at for at, name in named.items())

    @blamed_on_cache
    def elsewhere(self, path: TokenPath) -> bool:
        """Whether another template or mode of the same salt keeps a point on these tokens."""
        template, salt = path.namespace
        others: Iterable[tuple[str, str | None]] = [
            space for space in self._index.namespaces() if space[0] != template and space[1] == salt
        ]
        return any(self._index.matches(path, len(path) - 1, other) for other in others)
