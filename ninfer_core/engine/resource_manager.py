"""Where a request starts, what of it is kept, and what is given up first.

Occupancy lives in the Program alone. The catalogue holds references and facts as the Program
returned them; the policy decides by facts; both are asked when a request is admitted, reaches a
restore point, ends or lacks room, and never by plain decode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ninfer_core.contract.cache import CachePolicy, Demand, SourceCandidate
from ninfer_core.contract.checkpoints import (
    BindRequest,
    Captured,
    CheckpointAction,
    Plan,
    ResumeState,
)
from ninfer_core.contract.events import FinishReason, ReuseReason
from ninfer_core.contract.frontend import RestoreKind, RestorePoint
from ninfer_core.contract.program import PlanOutcome, Program
from ninfer_core.contract.requests import CacheMode
from ninfer_core.contract.resources import CheckpointRef, Shortfall
from ninfer_core.engine.catalogue import Catalogue, CatalogueEntry, SessionKey
from ninfer_core.engine.costs import Costs
from ninfer_core.engine.metrics import Metrics
from ninfer_core.engine.prefix_index import PieceHash
from ninfer_core.engine.reclaiming import Demotion, Reclaimer, Relief
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.saves import Saves
from ninfer_core.engine.token_path import TokenPath

MakeRoom = Callable[[Shortfall, CheckpointRef | None], Relief]
"""Frees some of an axis, and never the checkpoint that is named."""


class ResourceManager:
    """Chooses sources and victims through the policy and adopts what the Program returns."""

    def __init__(
        self, program: Program, policy: CachePolicy, metrics: Metrics, digest: PieceHash = hash
    ) -> None:
        self._program = program
        self._policy = policy
        self._metrics = metrics
        self.costs = Costs()
        self.catalogue = Catalogue(digest)
        self.reclaimer = Reclaimer(program, policy, self.catalogue, metrics, self.costs)
        self._saves = Saves(program, policy, self.catalogue, self.reclaimer)

    def __len__(self) -> int:
        return len(self.catalogue)

    def plan_bind(
        self, record: RequestRecord, lane: int, make_room: MakeRoom
    ) -> tuple[PlanOutcome, CheckpointRef | None]:
        """Plan the first bind from the best feasible source, or the bind of a paused request.

        Returns the outcome and the checkpoint that a plan would adopt. A shortfall is what is left
        when ``make_room`` has no more, or has some only later.
        """
        if record.resume is not None:
            request = self._request(record, lane, record.resume, ReuseReason.NO_MATCH)
            return self._with_room(request, None, make_room)[0], None
        reason = self._root_reason(record)
        record.wanted = None
        if reason is ReuseReason.NO_MATCH:
            for entry in self._ranked(record):
                if entry.ref not in self.catalogue:
                    continue
                record.wanted = record.wanted or entry.ref
                outcome, relief = self._adoption(record, lane, entry, make_room)
                if isinstance(outcome, Plan):
                    return outcome, entry.ref
                if relief is Relief.COMING:
                    return outcome, None
        request = self._request(record, lane, None, reason)
        return self._with_room(request, None, make_room)[0], None

    def lease(self, source: CheckpointRef | None) -> None:
        """Keep ``source`` until the open transaction has settled."""
        self.reclaimer.leased = source

    def forget(self, refs: Iterable[CheckpointRef]) -> None:
        """The Program released these on the way."""
        for ref in refs:
            self.catalogue.discard(ref)

    def admitted(self, record: RequestRecord, source: CheckpointRef | None) -> None:
        """Book what ``record`` adopted, or why nothing, and tell the policy what was wanted."""
        if not self._takes_part(record):
            return
        entry = self.catalogue[source] if source is not None and source in self.catalogue else None
        if record.watch.cached_tokens and entry is not None:
            record.watch.reuse_point = entry.kind
            record.watch.reuse_tier = min(entry.facts.replicas, default=None)
        elif record.watch.reuse_reason is ReuseReason.NO_MATCH:
            record.watch.reuse_reason = self._why_not(record)
        record.owner = self.catalogue.owner_of(_session(record), entry, record.ticket)
        self._observe(record, entry)

    def reclaim(self, shortfall: Shortfall, spare: CheckpointRef | None = None) -> bool:
        """Give up the policy's victims at once until the short axis is covered, ``spare`` only when
        there is no other; False when there is none."""
        return self.reclaimer.relieve(shortfall, spare, demote=False) is Relief.FREED

    def wants_capture(self, record: RequestRecord, frontier: int) -> RestorePoint | None:
        """The restore point at ``frontier`` of a prompt, if the request takes part in the cache."""
        if not self._takes_part(record):
            return None
        points = record.prepared.restore_points
        return next((point for point in points if point.frontier == frontier), None)

    def plan_capture(self, record: RequestRecord, point: RestorePoint) -> Plan | Demotion | None:
        """A feasible capture that the policy admits, with room made for it from the cache alone; or
        what must reach the host before."""
        return self._saves.plan(record, _path(record), point)

    def captured(self, record: RequestRecord, point: RestorePoint, result: Captured) -> None:
        """Take in a restore point of a resident request."""
        record.watch.captures += 1
        self._metrics.captured()
        self._publish(record, _path(record), point.kind, result)

    def release(self, record: RequestRecord) -> None:
        """End the resident sequence; its end is kept only after a whole, successful output that the
        policy admits."""
        self._measure(record)
        keep, path = False, None
        if self._ended_well(record):
            path = _path(record).extended(record.tokens)
            keep = self._saves.admits_end(record, path)
        result = self._program.finish(record.held_sequence(), keep=keep)
        record.sequence = None
        if isinstance(result, Captured):
            self._metrics.kept_end()
            if path is None:
                path = _path(record).extended(record.tokens)
            self._publish(record, path, RestoreKind.GENERATION_END, result)

    def drop_all(self) -> None:
        """Empty the catalogue, also when the Program refuses one of the references."""
        for ref in self.catalogue.clear():
            self._program.drop(ref, CheckpointAction.DELETE)

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
        if ends and self.catalogue.continues(_session(record), entry):
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

    def _measure(self, record: RequestRecord) -> None:
        """How fast its prompt was read."""
        watch = record.watch
        if watch.bound is not None and watch.first_token is not None and not watch.pauses:
            read = record.prompt_tokens - watch.cached_tokens
            self.costs.read(read, watch.first_token - watch.bound)

    def _takes_part(self, record: RequestRecord) -> bool:
        mode = record.prepared.request.cache.mode
        return self._policy.keeps and mode is CacheMode.READ_WRITE

    def _root_reason(self, record: RequestRecord) -> ReuseReason:
        if not self._takes_part(record):
            return ReuseReason.DISABLED
        if record.rules.prompt_logprobs is not None:
            return ReuseReason.LIMITED_BY_SCORING
        return ReuseReason.NO_MATCH

    def _why_not(self, record: RequestRecord) -> ReuseReason:
        path = _path(record)
        if len(path) < 2:
            return ReuseReason.TOO_SHORT
        if record.wanted is not None or record.refused_sources:
            return ReuseReason.NO_ROOM
        if self.catalogue.was_given_up(path):
            return ReuseReason.EVICTED
        other = self.catalogue.elsewhere(path)
        return ReuseReason.OTHER_TEMPLATE if other else ReuseReason.NO_MATCH

    def _ranked(self, record: RequestRecord) -> list[CatalogueEntry]:
        path = _path(record)
        owner = self.catalogue.session(_session(record))
        candidates = []
        for entry in self.catalogue.on_path(path, len(path) - 1):
            if entry.ref in record.refused_sources:
                continue
            work = self._program.restore_work(entry.ref, record.prepared)
            if work is not None:
                own = owner is not None and entry.owner is owner
                moved = self.costs.in_tokens(work.seconds)
                candidates.append(
                    SourceCandidate(entry.ref, entry.facts, work, own, entry.provenance(), moved)
                )
        ranked = self._policy.rank_sources(record.prepared, candidates) if candidates else ()
        return [self.catalogue[candidate.ref] for candidate in ranked]

    def _reason(self, record: RequestRecord, entry: CatalogueEntry) -> ReuseReason:
        owner = self.catalogue.session(_session(record))
        own = owner is not None and entry.owner is owner
        return ReuseReason.PRIVATE_CHECKPOINT if own else ReuseReason.SHARED_CHECKPOINT

    def _observe(self, record: RequestRecord, source: CatalogueEntry | None) -> None:
        """Adopting a point is demand for it, and so is computing across a restore point."""
        start = record.watch.cached_tokens
        if source is not None:
            self._policy.observe(
                Demand(record.ticket, source.facts.frontier, source.digest, adopted=True)
            )
        crossed = [p.frontier for p in record.prepared.restore_points if p.frontier > start]
        for frontier, digest in _path(record).digests(crossed).items():
            self._policy.observe(Demand(record.ticket, frontier, digest, adopted=False))

    def _publish(
        self, record: RequestRecord, path: TokenPath, kind: RestoreKind, result: Captured
    ) -> None:
        owner = record.owner or self.catalogue.owner_of(_session(record), None, record.ticket)
        frontier = result.facts.frontier
        entry = CatalogueEntry(
            ref=result.checkpoint,
            facts=result.facts,
            kind=kind,
            order=record.ticket,
            digest=path.digests([frontier])[frontier],
            owner=owner,
        )
        self.catalogue.publish(entry, path)

    def _ended_well(self, record: RequestRecord) -> bool:
        whole = isinstance(record.ending, FinishReason)
        return whole and record.ending is not FinishReason.CANCELLED and self._takes_part(record)


def _path(record: RequestRecord) -> TokenPath:
    if record.path is None:
        record.path = TokenPath.of(record.prepared)
    return record.path


def _session(record: RequestRecord) -> SessionKey | None:
    cache = record.prepared.request.cache
    return None if cache.session_key is None else (cache.salt, cache.session_key)
