"""Where a request starts: the best checkpoint that has room, or the root."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ninfer_core.contract.cache import CachePolicy, SourceCandidate
from ninfer_core.contract.checkpoints import BindRequest, Plan, ResumeState
from ninfer_core.contract.events import ReuseReason
from ninfer_core.contract.frontend import RestoreKind
from ninfer_core.contract.program import PlanOutcome, Program
from ninfer_core.contract.resources import CheckpointRef, Shortfall
from ninfer_core.engine.cache_faults import CacheGuard
from ninfer_core.engine.catalogue import Catalogue, CatalogueEntry, SessionKey
from ninfer_core.engine.costs import Costs
from ninfer_core.engine.reclaiming import Relief
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.token_path import TokenPath

MakeRoom = Callable[[Shortfall, CheckpointRef | None], Relief]
"""Frees some of an axis, and never the checkpoint that is named."""


class Sources:
    """Plans binds. Ranking is the policy's; a fault of the cache makes the root the source."""

    def __init__(
        self,
        program: Program,
        policy: CachePolicy,
        catalogue: Catalogue,
        costs: Costs,
        guard: CacheGuard,
    ) -> None:
        self._program = program
        self._policy = policy
        self._catalogue = catalogue
        self._costs = costs
        self._guard = guard

    def plan_bind(
        self, record: RequestRecord, lane: int, reason: ReuseReason, make_room: MakeRoom
    ) -> tuple[PlanOutcome, CheckpointRef | None]:
        """Plan the first bind from the best feasible source, or the bind of a paused request.

        ``reason`` says why it would start from the root: only NO_MATCH looks for something better.
        Returns the outcome and the checkpoint that a plan would adopt. A shortfall is what is left
        when ``make_room`` has no more, or has some only later.
        """
        if record.resume is not None:
            request = self._request(record, lane, record.resume, ReuseReason.NO_MATCH)
            return self._with_room(request, None, make_room)[0], None
        record.wanted = None
        if reason is ReuseReason.NO_MATCH:
            search = partial(self._from_the_cache, record, lane, make_room)
            found = self._guard.run(search, None)
            if found is not None:
                return found
        request = self._request(record, lane, None, reason)
        return self._with_room(request, None, make_room)[0], None

    def _from_the_cache(
        self, record: RequestRecord, lane: int, make_room: MakeRoom
    ) -> tuple[PlanOutcome, CheckpointRef | None] | None:
        """The plan to adopt the best source that has room, or what comes when room does."""
        for entry in self._ranked(record):
            if entry.ref not in self._catalogue:
                continue
            record.wanted = record.wanted or entry.ref
            outcome, relief = self._adoption(record, lane, entry, make_room)
            if isinstance(outcome, Plan):
                return outcome, entry.ref
            if relief is Relief.COMING:
                return outcome, None
        return None

    def _adoption(
        self, record: RequestRecord, lane: int, entry: CatalogueEntry, make_room: MakeRoom
    ) -> tuple[PlanOutcome, Relief]:
        """The plan to begin with a checkpoint. Short of room, the end that this request goes on
        from is rather taken over in place than others are given up for a copy of it."""
        reason = self._reason(record, entry)
        request = self._request(record, lane, entry.ref, reason)
        outcome = self._program.plan_bind(request)
        if isinstance(outcome, Plan):
            return outcome, Relief.FREED
        ends = entry.kind is RestoreKind.GENERATION_END
        if ends and self._catalogue.continues(session_of(record), entry):
            moved = self._program.plan_bind(replace(request, consume=True))
            if isinstance(moved, Plan):
                return moved, Relief.FREED
        return self._with_room(request, entry.ref, make_room)

    def _with_room(
        self, request: BindRequest, keep: CheckpointRef | None, make_room: MakeRoom
    ) -> tuple[PlanOutcome, Relief]:
        """The plan, with room made for it as long as that brings some at once."""
        outcome = self._program.plan_bind(request)
        while isinstance(outcome, Shortfall):
            relief = make_room(outcome, keep)
            if relief is not Relief.FREED:
                return outcome, relief
            if keep is not None and keep not in self._catalogue:
                # The cache was dropped for a fault of its own.
                return outcome, Relief.NOTHING
            outcome = self._program.plan_bind(request)
        return outcome, Relief.NOTHING

    def _request(
        self,
        record: RequestRecord,
        lane: int,
        source: CheckpointRef | ResumeState | None,
        reason: ReuseReason,
    ) -> BindRequest:
        return BindRequest(
            lane=lane,
            prepared=record.prepared,
            sampling=record.sampling,
            rules=record.rules,
            publication_order=record.ticket,
            source=source,
            source_reason=reason,
        )

    def _ranked(self, record: RequestRecord) -> list[CatalogueEntry]:
        path = path_of(record)
        owner = self._catalogue.session(session_of(record))
        candidates = []
        for entry in self._catalogue.on_path(path, len(path) - 1):
            if entry.ref in record.refused_sources:
                continue
            work = self._program.restore_work(entry.ref, record.prepared)
            if work is not None:
                own = owner is not None and entry.owner is owner
                moved = self._costs.in_tokens(work.seconds)
                candidates.append(
                    SourceCandidate(entry.ref, entry.facts, work, own, entry.provenance(), moved)
                )
        ranked = self._policy.rank_sources(record.prepared, candidates) if candidates else ()
        return [self._catalogue[candidate.ref] for candidate in ranked]

    def _reason(self, record: RequestRecord, entry: CatalogueEntry) -> ReuseReason:
        owner = self._catalogue.session(session_of(record))
        own = owner is not None and entry.owner is owner
        return ReuseReason.PRIVATE_CHECKPOINT if own else ReuseReason.SHARED_CHECKPOINT


def path_of(record: RequestRecord) -> TokenPath:
    if record.path is None:
        record.path = TokenPath.of(record.prepared)
    return record.path


def session_of(record: RequestRecord) -> SessionKey | None:
    cache = record.prepared.request.cache
    return None if cache.session_key is None else (cache.salt, cache.session_key)
