"""What of the cache goes when room is short, and what is copied to the host instead."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from ninfer_core.contract.cache import CachePolicy, SaveOffer, Victim
from ninfer_core.contract.checkpoints import CheckpointAction, Demoted, Plan, Tier
from ninfer_core.contract.program import Program
from ninfer_core.contract.resources import CheckpointRef, ResourceVector, Shortfall
from ninfer_core.engine.catalogue import Catalogue, CatalogueEntry
from ninfer_core.engine.costs import Costs
from ninfer_core.engine.metrics import Metrics

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
        is no other, with ``keep`` never.

        The first victim that is to be copied to the host ends it: the copy is the caller's to
        begin, or has to wait while another transaction is open (``busy``). Without ``demote`` such
        ones are deleted.
        """
        candidates = list(self.victims(shortfall, demote=demote))
        others = [victim for victim in candidates if victim.ref != spare]
        candidates = others if others or keep else candidates
        lacking, gone = shortfall.needed - shortfall.available, set[CheckpointRef]()
        for victim in self._policy.victims(shortfall, candidates) if candidates else ():
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
        """Delete points that hold some of the short axis in common with others, the least valuable
        first, until some action on what is left frees some; ``spare`` last, with ``keep`` never.

        Two points in one page free it only together, and so neither is a victim alone. What else
        holds their room is not known here: where that is not the cache, they go for nothing.
        """
        candidates = [
            self._victim(entry, CheckpointAction.DELETE, entry.facts.footprint)
            for entry in self._catalogue
            if entry.ref != self.leased and _holds(entry, short.axis)
        ]
        ordered = self._policy.victims(short, candidates) if candidates else ()
        last = [] if keep else [victim for victim in ordered if victim.ref == spare]
        for victim in [*(one for one in ordered if one.ref != spare), *last]:
            self.give_up(victim)
            if any(not keep or one.ref != spare for one in self.victims(short)):
                return True
        return False

    def enough(
        self, short: Shortfall, spare: CheckpointRef | None = None, *, demote: bool = True
    ) -> tuple[Victim, ...]:
        """The policy's victims but ``spare`` up to what is lacking; nothing when that cannot be
        reached."""
        candidates = [one for one in self.victims(short, demote=demote) if one.ref != spare]
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
        entry = self._catalogue[result.checkpoint]
        entry.facts = result.facts
        if CheckpointAction.DROP_DEVICE in self._program.actions(result.checkpoint):
            self._program.drop(result.checkpoint, CheckpointAction.DROP_DEVICE)
            entry.facts = self._program.facts(result.checkpoint)

    def stays(self, ref: CheckpointRef) -> None:
        """Its copy to the host came to nothing; it is not tried again."""
        self._catalogue[ref].stays = True

    def victims(self, shortfall: Shortfall, *, demote: bool = True) -> Iterator[Victim]:
        """Every action that frees some of the short axis."""
        for entry in self._catalogue:
            if entry.ref == self.leased:
                continue
            for action, frees in self._program.actions(entry.ref).items():
                wanted = action is not CheckpointAction.DEMOTE or (demote and not entry.stays)
                if wanted and frees.amount(shortfall.axis) > 0:
                    yield self._victim(entry, action, frees)

    def give_up(self, victim: Victim) -> None:
        """Carry out what needs no transaction."""
        self._program.drop(victim.ref, victim.action)
        if victim.action is CheckpointAction.DELETE:
            self._metrics.reclaimed()
            self._catalogue.discard(victim.ref, given_up=True)
        else:
            self._catalogue[victim.ref].facts = self._program.facts(victim.ref)

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


def _holds(entry: CatalogueEntry, axis: str) -> bool:
    """Whether it holds some of an axis of the device, for itself or with others."""
    on_device = Tier.DEVICE in entry.facts.replicas
    return on_device and entry.facts.footprint.amount(axis) > 0


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
