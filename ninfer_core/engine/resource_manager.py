"""Which checkpoints exist for the engine, where a request starts, and what is given up first.

Occupancy lives in the Program alone. This catalogue holds references and facts as the Program
returned them, and never adds anything up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ninfer_core.contract.cache import CachePolicy, SourceCandidate, Victim
from ninfer_core.contract.checkpoints import (
    BindRequest,
    Captured,
    CheckpointAction,
    CheckpointFacts,
    Plan,
    ResumeState,
)
from ninfer_core.contract.events import FinishReason, ReuseReason
from ninfer_core.contract.program import PlanOutcome, Program
from ninfer_core.contract.requests import CacheMode
from ninfer_core.contract.resources import CheckpointRef, Shortfall
from ninfer_core.engine.request_record import RequestRecord

_AT_ONCE = frozenset({CheckpointAction.DROP_DEVICE, CheckpointAction.DELETE})
"""Actions that need no transaction."""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One checkpoint: the facts the Program stated and the session that left it."""

    facts: CheckpointFacts
    session_key: str | None


class ResourceManager:
    """Chooses sources and victims through the policy and adopts what the Program returns."""

    def __init__(self, program: Program, policy: CachePolicy) -> None:
        self._program = program
        self._policy = policy
        self._catalogue: dict[CheckpointRef, CatalogueEntry] = {}
        self._leased: CheckpointRef | None = None

    def __len__(self) -> int:
        return len(self._catalogue)

    def plan_bind(
        self, record: RequestRecord, lane: int
    ) -> tuple[PlanOutcome, CheckpointRef | None]:
        """Plan the first bind from the best feasible source, or the bind of a paused request.

        Returns the outcome and the checkpoint that a plan would adopt.
        """
        if record.resume is not None:
            return self._plan(record, lane, record.resume, ReuseReason.NO_MATCH), None
        reason = self._root_reason(record)
        if reason is ReuseReason.NO_MATCH:
            for ref in self._ranked(record):
                outcome = self._plan(record, lane, ref, self._reason(record, ref))
                if isinstance(outcome, Plan):
                    return outcome, ref
        return self._plan(record, lane, None, reason), None

    def lease(self, source: CheckpointRef | None) -> None:
        """Keep ``source`` until the open transaction has settled."""
        self._leased = source

    def forget(self, refs: Iterable[CheckpointRef]) -> None:
        """The Program released these on the way."""
        for ref in refs:
            self._catalogue.pop(ref, None)

    def reclaim(self, shortfall: Shortfall) -> bool:
        """Give up the policy's first victim that frees the short axis; False when there is none."""
        candidates = list(self._victims(shortfall))
        for victim in self._policy.victims(shortfall, candidates) if candidates else ():
            self._program.drop(victim.ref, victim.action)
            if victim.action is CheckpointAction.DELETE:
                del self._catalogue[victim.ref]
            return True
        return False

    def release(self, record: RequestRecord) -> None:
        """End the resident sequence; its end is kept only after a whole, successful output."""
        result = self._program.finish(record.held_sequence(), keep=self._keeps(record))
        record.sequence = None
        if isinstance(result, Captured):
            key = record.prepared.request.cache.session_key
            self._catalogue[result.checkpoint] = CatalogueEntry(result.facts, key)

    def drop_all(self) -> None:
        """Empty the catalogue, also when the Program refuses one of the references."""
        refs, self._catalogue = list(self._catalogue), {}
        for ref in refs:
            self._program.drop(ref, CheckpointAction.DELETE)

    def _plan(
        self,
        record: RequestRecord,
        lane: int,
        source: CheckpointRef | ResumeState | None,
        reason: ReuseReason,
    ) -> PlanOutcome:
        return self._program.plan_bind(
            BindRequest(
                lane=lane,
                prepared=record.prepared,
                sampling=record.sampling,
                rules=record.rules,
                publication_order=record.ticket,
                source=source,
                source_reason=reason,
            )
        )

    def _root_reason(self, record: RequestRecord) -> ReuseReason:
        cache = record.prepared.request.cache
        if not self._policy.keeps or cache.mode is CacheMode.DISABLED:
            return ReuseReason.DISABLED
        if record.rules.prompt_logprobs is not None:
            return ReuseReason.LIMITED_BY_SCORING
        return ReuseReason.NO_MATCH

    def _ranked(self, record: RequestRecord) -> list[CheckpointRef]:
        candidates = []
        for ref, entry in self._catalogue.items():
            work = self._program.restore_work(ref, record.prepared)
            if work is not None and ref not in record.refused_sources:
                candidates.append(SourceCandidate(ref, entry.facts, work))
        ranked = self._policy.rank_sources(record.prepared, candidates) if candidates else ()
        return [candidate.ref for candidate in ranked]

    def _reason(self, record: RequestRecord, ref: CheckpointRef) -> ReuseReason:
        key = record.prepared.request.cache.session_key
        own = key is not None and key == self._catalogue[ref].session_key
        return ReuseReason.PRIVATE_CHECKPOINT if own else ReuseReason.SHARED_CHECKPOINT

    def _victims(self, shortfall: Shortfall) -> Iterator[Victim]:
        for ref, entry in self._catalogue.items():
            if ref == self._leased:
                continue
            for action, frees in self._program.actions(ref).items():
                if action in _AT_ONCE and frees.amount(shortfall.axis) > 0:
                    yield Victim(ref, entry.facts, action, frees)

    def _keeps(self, record: RequestRecord) -> bool:
        whole = isinstance(record.ending, FinishReason)
        return (
            self._policy.keeps
            and whole
            and record.ending is not FinishReason.CANCELLED
            and record.prepared.request.cache.mode is CacheMode.READ_WRITE
        )
