"""Whether an optional save is worth it, and the room that the cache itself makes for it."""

from __future__ import annotations

from ninfer_core.contract.cache import CachePolicy, SaveOffer, Victim
from ninfer_core.contract.checkpoints import CheckpointAction, Plan
from ninfer_core.contract.frontend import RestoreKind, RestorePoint
from ninfer_core.contract.program import Program
from ninfer_core.contract.resources import ResourceVector, Shortfall
from ninfer_core.engine.catalogue import Catalogue
from ninfer_core.engine.reclaiming import Demotion, Reclaimer
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.token_path import TokenPath

_ATTEMPTS = 4
"""Axes that may turn out short one after the other."""


class Saves:
    """Asks the policy. Nobody is paused and no Snapshot revoked for a save."""

    def __init__(
        self, program: Program, policy: CachePolicy, catalogue: Catalogue, reclaimer: Reclaimer
    ) -> None:
        self._program = program
        self._policy = policy
        self._catalogue = catalogue
        self._reclaimer = reclaimer

    def plan(
        self, record: RequestRecord, path: TokenPath, point: RestorePoint
    ) -> Plan | Demotion | None:
        """A plan for a capture here, or None: already there, refused, or without room. A demotion
        brings the room; the plan is asked for again behind it."""
        fallback = self._catalogue.deepest(path, point.frontier)
        if fallback == point.frontier:
            return None
        digest = path.digests([point.frontier])[point.frontier]
        displaced: tuple[Victim, ...] = ()
        demote = True
        for _ in range(_ATTEMPTS):
            outcome = self._program.plan_capture(record.held_sequence())
            if not isinstance(outcome, Plan | Shortfall):
                return None
            more: tuple[Victim, ...] = ()
            if isinstance(outcome, Shortfall):
                more = self._reclaimer.enough(outcome, demote=demote)
                if not more:
                    return None
            offer = SaveOffer(
                point.frontier,
                point.kind,
                outcome.need if isinstance(outcome, Plan) else _lacking(outcome),
                fallback,
                digest,
                record.ticket,
                displaced + more,
            )
            if not self._policy.admit(offer):
                return None
            if isinstance(outcome, Plan):
                return outcome
            demotion = self._carry_out(more)
            if demotion is not None:
                return demotion
            demote = False
            displaced += tuple(one for one in more if one.action is CheckpointAction.DELETE)
        return None

    def _carry_out(self, victims: tuple[Victim, ...]) -> Demotion | None:
        """Give up what needs no transaction; the first demotion that is possible, if any."""
        for victim in victims:
            if victim.action is not CheckpointAction.DEMOTE:
                self._reclaimer.give_up(victim)
        for victim in victims:
            demotes = victim.action is CheckpointAction.DEMOTE
            demotion = self._reclaimer.demotion(victim) if demotes else None
            if demotion is not None:
                return demotion
        return None

    def admits_end(self, record: RequestRecord, path: TokenPath) -> bool:
        """Whether the end of ``record``, which stays where it is, is worth keeping."""
        frontier = len(path) - bool(record.tokens)
        if frontier < 1:
            return False
        fallback = self._catalogue.deepest(path, frontier)
        digest = path.digests([frontier])[frontier]
        kind = RestoreKind.GENERATION_END
        return fallback < frontier and self._policy.admit(
            SaveOffer(frontier, kind, ResourceVector(), fallback, digest, record.ticket)
        )


def _lacking(short: Shortfall) -> ResourceVector:
    amount = short.needed
    if short.axis == "state_slots":
        return ResourceVector(state_slots=amount)
    if short.axis == "host_bytes":
        return ResourceVector(host_bytes=amount)
    return ResourceVector(pages={short.axis: amount})
