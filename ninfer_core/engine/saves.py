"""Whether an optional save is worth it, and the room that the cache itself makes for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ninfer_core.contract.cache import CachePolicy, SaveOffer, Victim
from ninfer_core.contract.checkpoints import Plan
from ninfer_core.contract.frontend import RestoreKind, RestorePoint
from ninfer_core.contract.program import Program
from ninfer_core.contract.resources import ResourceVector, Shortfall
from ninfer_core.engine.catalogue import Catalogue
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.token_path import TokenPath

_ATTEMPTS = 4
"""Axes that may turn out short one after the other."""


class Saves:
    """Asks the policy. Nobody is paused and no Snapshot revoked for a save."""

    def __init__(
        self,
        program: Program,
        policy: CachePolicy,
        catalogue: Catalogue,
        candidates: Callable[[Shortfall], Iterable[Victim]],
        give_up: Callable[[Victim], None],
    ) -> None:
        self._program = program
        self._policy = policy
        self._catalogue = catalogue
        self._candidates = candidates
        self._give_up = give_up

    def plan(self, record: RequestRecord, path: TokenPath, point: RestorePoint) -> Plan | None:
        """A plan for a capture here, or None: already there, refused, or without room."""
        fallback = self._catalogue.deepest(path, point.frontier)
        if fallback == point.frontier:
            return None
        digest = path.digests([point.frontier])[point.frontier]
        displaced: tuple[Victim, ...] = ()
        for _ in range(_ATTEMPTS):
            outcome = self._program.plan_capture(record.held_sequence())
            if not isinstance(outcome, Plan | Shortfall):
                return None
            more: tuple[Victim, ...] = ()
            if isinstance(outcome, Shortfall):
                more = self._enough(outcome)
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
            for victim in more:
                self._give_up(victim)
            displaced += more
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

    def _enough(self, short: Shortfall) -> tuple[Victim, ...]:
        """The policy's victims up to what is lacking; nothing when that cannot be reached."""
        candidates, chosen = list(self._candidates(short)), []
        lacking = short.needed - short.available
        for victim in self._policy.victims(short, candidates) if candidates else ():
            chosen.append(victim)
            lacking -= victim.frees.amount(short.axis)
            if lacking <= 0:
                return tuple(chosen)
        return ()


def _lacking(short: Shortfall) -> ResourceVector:
    amount = short.needed
    if short.axis == "state_slots":
        return ResourceVector(state_slots=amount)
    if short.axis == "host_bytes":
        return ResourceVector(host_bytes=amount)
    return ResourceVector(pages={short.axis: amount})
