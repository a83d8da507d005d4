"""What of the cache goes when room is short, and what is copied to the host instead."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ninfer_core.contract.cache import CachePolicy, SaveOffer, Victim
from ninfer_core.contract.checkpoints import CheckpointAction, Demoted, Plan, Tier
from ninfer_core.contract.program import Program
from ninfer_core.contract.resources import CheckpointRef, ResourceVector, Shortfall
from ninfer_core.engine.catalogue import Catalogue, CatalogueEntry
from ninfer_core.engine.costs import Costs
from ninfer_core.engine.metrics import Metrics

WINDOW = 32
"""Checkpoints among which the policy chooses: the search for room does not grow with the cache."""

LOOKS = 4 * WINDOW
"""Checkpoints that are looked at for them, once there is one."""

_ATTEMPTS = 4
"""Rounds of making room on the host for one demotion."""

_TO_HOST = frozenset({CheckpointAction.DEMOTE, CheckpointAction.DROP_DEVICE})


class Relief(enum.Enum):
    """Room was freed, comes when the open transaction has settled, or cannot be had."""

    FREED = "freed"
    COMING = "coming"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Demotion:
    """A checkpoint that is worth its place on the host, and the plan that takes it there."""

    ref: CheckpointRef
    plan: Plan


class Reclaimer:
    """Asks the policy, which sees one victim for each action on a checkpoint, and carries out what
    needs no transaction. ``leased`` is what the open transaction reads."""

    def __init__(
        self,
        program: Program,
        policy: CachePolicy,
        catalogue: Catalogue,
        metrics: Metrics,
        costs: Costs,
    ) -> None:
        self._program = program
        self._policy = policy
        self._catalogue = catalogue
        self._metrics = metrics
        self._costs = costs
        self._changes = 0
        self._barren: dict[tuple[str, CheckpointRef | None, bool, int], int] = {}
        self.leased: CheckpointRef | None = None

    def relieve(
        self,
        shortfall: Shortfall,
        spare: CheckpointRef | None = None,
        *,
        keep: bool = False,
        demote: bool = True,
        busy: bool = False,
    ) -> Relief | Demotion:
        """Give up the policy's victims until the short axis is covered: ``spare`` only when there
        is no other, with ``keep`` never. Where none frees some alone, a group that does together.

        The first victim that is to be copied to the host ends it: the copy is the caller's to
        begin, or has to wait while another transaction is open (``busy``). Without ``demote`` such
        ones are deleted.
        """
        question = shortfall.axis, spare if keep else None, demote, shortfall.available
        if self._barren.get(question) == self._changes:
            return Relief.NOTHING
        candidates = self.victims(shortfall, spare, demote=demote)
        others = [victim for victim in candidates if victim.ref != spare]
        candidates = others if others or keep else candidates
        if not candidates:
            if self.untangle(shortfall, spare, keep=keep):
                return Relief.FREED
            self._barren[question] = self._changes
            return Relief.NOTHING
        lacking, gone = shortfall.needed - shortfall.available, set[CheckpointRef]()
        for victim in self._policy.victims(shortfall, candidates):
            if victim.ref in gone:
                continue
            if victim.action is CheckpointAction.DEMOTE:
                if gone:
                    return Relief.FREED
                if busy:
                    return Relief.COMING
                demotion = self.demotion(victim, spare)
                if demotion is not None:
                    return demotion
                victim = _deletion(victim, candidates)
            self.give_up(victim)
            gone.add(victim.ref)
            lacking -= victim.frees.amount(shortfall.axis)
            if lacking <= 0:
                break
        return Relief.FREED if gone else Relief.NOTHING

    def untangle(
        self, short: Shortfall, spare: CheckpointRef | None = None, *, keep: bool = False
    ) -> bool:
        """Delete the least valuable group of points that hold some of the short axis together and
        with nobody else, and so free it only together; one with ``spare`` only where there is no
        other, with ``keep`` none. Whether there was one."""
        groups = self._groups(short.axis, spare, keep=keep)
        refs = sorted({ref for group in groups for ref in group}, key=self._serial)
        candidates = [
            self._victim(entry, CheckpointAction.DELETE, entry.facts.footprint)
            for entry in map(self._catalogue.__getitem__, refs)
        ]
        ordered = self._policy.victims(short, candidates) if candidates else ()
        rank = {victim.ref: place for place, victim in enumerate(ordered)}
        groups = [group for group in groups if group <= rank.keys()]
        if not groups:
            return False
        chosen = min(groups, key=lambda group: sorted((rank[ref] for ref in group), reverse=True))
        for victim in ordered:
            if victim.ref in chosen:
                self.give_up(victim)
        return True

    def _groups(
        self, axis: str, spare: CheckpointRef | None, *, keep: bool
    ) -> list[frozenset[CheckpointRef]]:
        groups = [group for group in self._program.joint(axis) if self.leased not in group]
        others = [group for group in groups if spare not in group]
        return others if others or keep else groups

    def _serial(self, ref: CheckpointRef) -> int:
        return self._catalogue[ref].serial

    def enough(
        self, short: Shortfall, spare: CheckpointRef | None = None, *, demote: bool = True
    ) -> tuple[Victim, ...]:
        """The policy's victims but ``spare`` up to what is lacking; nothing when that cannot be
        reached."""
        found = self.victims(short, spare, demote=demote)
        candidates = [one for one in found if one.ref != spare]
        lacking = short.needed - short.available
        chosen: dict[CheckpointRef, Victim] = {}
        for victim in self._policy.victims(short, candidates) if candidates else ():
            if victim.ref in chosen:
                continue
            chosen[victim.ref] = victim
            lacking -= victim.frees.amount(short.axis)
            if lacking <= 0:
                return tuple(chosen.values())
        return ()

    def demotion(self, victim: Victim, spare: CheckpointRef | None = None) -> Demotion | None:
        """The way to the host, with room made there where the policy finds that worth it, though
        not in place of ``spare``."""
        for _ in range(_ATTEMPTS):
            outcome = self._program.plan_demote(victim.ref)
            if isinstance(outcome, Plan):
                return Demotion(victim.ref, outcome)
            if not isinstance(outcome, Shortfall):
                return None
            displaced = self.enough(outcome, spare)
            if not displaced or not self._policy.admit(_offer(victim, outcome, displaced)):
                return None
            for one in displaced:
                self.give_up(one)
        return None

    def demoted(self, result: Demoted) -> None:
        """The host has it now, so that the device need not."""
        self._metrics.demoted(result.moved_bytes)
        if result.checkpoint not in self._catalogue:
            return
        self._catalogue.place(result.checkpoint, result.facts)
        if CheckpointAction.DROP_DEVICE in self._program.actions(result.checkpoint):
            self._program.drop(result.checkpoint, CheckpointAction.DROP_DEVICE)
            self._catalogue.place(result.checkpoint, self._program.facts(result.checkpoint))

    def stays(self, ref: CheckpointRef) -> None:
        """Its copy to the host came to nothing; it is not tried again."""
        if ref in self._catalogue:
            self._catalogue[ref].stays = True

    def changed(self) -> None:
        """Somebody holds something more or less: what frees nothing now may free something."""
        self._changes += 1
        self._barren.clear()

    def victims(
        self, shortfall: Shortfall, spare: CheckpointRef | None = None, *, demote: bool = True
    ) -> list[Victim]:
        """Every action that frees some of the short axis, on the :data:`WINDOW` checkpoints beside
        ``spare`` that come first, and on that. Those passed over, of which none does, come last
        from now on."""
        found: dict[CatalogueEntry, list[Victim]] = {}
        passed, others = [], 0
        for entry in self._catalogue.oldest(tier_of(shortfall.axis)):
            actions = self._useful(entry, shortfall.axis, demote) if self._free(entry) else []
            if actions:
                found[entry] = actions
                others += entry.ref != spare
            else:
                passed.append(entry.ref)
            if others == WINDOW or (others and others + len(passed) >= LOOKS):
                break
        for ref in passed if found else ():
            self._catalogue.put_off(ref)
        return [one for entry in sorted(found, key=_by_serial) for one in found[entry]]

    def _free(self, entry: CatalogueEntry) -> bool:
        return entry.ref != self.leased

    def _useful(self, entry: CatalogueEntry, axis: str, demote: bool) -> list[Victim]:
        """What can be done with it that frees some of ``axis``."""
        demote = demote and not entry.stays
        return [
            self._victim(entry, action, frees)
            for action, frees in self._program.actions(entry.ref).items()
            if frees.amount(axis) > 0 and (demote or action is not CheckpointAction.DEMOTE)
        ]

    def give_up(self, victim: Victim) -> None:
        """Carry out what needs no transaction."""
        self.changed()
        self._program.drop(victim.ref, victim.action)
        if victim.action is CheckpointAction.DELETE:
            self._metrics.reclaimed()
            self._catalogue.discard(victim.ref, given_up=True)
        else:
            self._catalogue.place(victim.ref, self._program.facts(victim.ref))

    def _victim(
        self, entry: CatalogueEntry, action: CheckpointAction, frees: ResourceVector
    ) -> Victim:
        seconds = entry.facts.restore_seconds if action in _TO_HOST else 0.0
        return Victim(
            ref=entry.ref,
            facts=entry.facts,
            action=action,
            frees=frees,
            fallback=self._catalogue.fallback(entry.ref),
            provenance=entry.provenance(),
            restore_tokens=self._costs.in_tokens(seconds),
        )


def tier_of(axis: str) -> Tier:
    """Where an axis of resources lies."""
    return Tier.HOST if axis == "host_bytes" else Tier.DEVICE


def _by_serial(entry: CatalogueEntry) -> int:
    return entry.serial


def _deletion(victim: Victim, candidates: list[Victim]) -> Victim:
    """The same checkpoint, deleted."""
    return next(
        one for one in candidates if one.ref == victim.ref and one.action is CheckpointAction.DELETE
    )


def _offer(victim: Victim, short: Shortfall, displaced: tuple[Victim, ...]) -> SaveOffer:
    provenance = victim.provenance
    return SaveOffer(
        frontier=victim.facts.frontier,
        kind=provenance.kind,
        footprint=ResourceVector(host_bytes=short.needed),
        fallback=victim.fallback,
        digest=provenance.digest,
        order=provenance.order,
        displaces=displaced,
    )
