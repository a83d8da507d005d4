"""Where a request starts, what of it is kept, and what is given up first.

Occupancy lives in the Program alone. The catalogue holds references and facts as the Program
returned them; the policy decides by facts; both are asked when a request is admitted, reaches a
restore point, ends or lacks room, and never by plain decode.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ninfer_core.contract.cache import CachePolicy, Demand
from ninfer_core.contract.checkpoints import (
    Captured,
    CheckpointAction,
    Demoted,
    Plan,
)
from ninfer_core.contract.events import FinishReason, ReuseReason
from ninfer_core.contract.frontend import RestoreKind, RestorePoint
from ninfer_core.contract.program import PlanOutcome, Program
from ninfer_core.contract.requests import CacheMode
from ninfer_core.contract.resources import CheckpointRef, Shortfall
from ninfer_core.engine.cache_faults import CacheGuard
from ninfer_core.engine.catalogue import Catalogue, CatalogueEntry
from ninfer_core.engine.checked_policy import CheckedPolicy
from ninfer_core.engine.costs import Costs
from ninfer_core.engine.metrics import Metrics
from ninfer_core.engine.prefix_index import PieceHash
from ninfer_core.engine.reclaiming import Demotion, Reclaimer, Relief
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.saves import Saves
from ninfer_core.engine.sources import MakeRoom, Sources, path_of, session_of
from ninfer_core.engine.token_path import TokenPath


class ResourceManager:
    """Chooses sources and victims through the policy and adopts what the Program returns."""

    def __init__(
        self, program: Program, policy: CachePolicy, metrics: Metrics, digest: PieceHash = hash
    ) -> None:
        self._program = program
        self._policy = CheckedPolicy(policy)
        self._metrics = metrics
        self.costs = Costs()
        self.catalogue = Catalogue(digest)
        self.guard = CacheGuard(program, self._clear, metrics.cache_dropped)
        self.reclaimer = Reclaimer(program, self._policy, self.catalogue, metrics, self.costs)
        self._sources = Sources(program, self._policy, self.catalogue, self.costs, self.guard)
        self._source: CatalogueEntry | None = None
        self._saves = Saves(program, self._policy, self.catalogue, self.reclaimer)

    def __len__(self) -> int:
        return len(self.catalogue)

    def plan_bind(
        self, record: RequestRecord, lane: int, make_room: MakeRoom
    ) -> tuple[PlanOutcome, CheckpointRef | None]:
        """See :meth:`Sources.plan_bind`."""
        return self._sources.plan_bind(record, lane, self._root_reason(record), make_room)

    def lease(self, source: CheckpointRef | None) -> None:
        """Keep ``source`` until the open transaction has settled."""
        self.reclaimer.leased = source
        if source is not None and source in self.catalogue:
            self._source = self.catalogue[source]

    def settled(self, retired: Iterable[CheckpointRef] = ()) -> None:
        """The open transaction is; the Program released ``retired`` on the way."""
        self.reclaimer.changed()
        for ref in retired:
            self.guard.run(partial(self.catalogue.discard, ref), None)
        self.guard.settled(retired)

    def demoted(self, result: Demoted) -> None:
        """The host has it now, so that the device need not."""
        self.guard.run(partial(self.reclaimer.demoted, result), None)

    def relieve(
        self,
        shortfall: Shortfall,
        spare: CheckpointRef | None = None,
        *,
        keep: bool = False,
        demote: bool = True,
        busy: bool = False,
    ) -> Relief | Demotion:
        """See :meth:`Reclaimer.relieve`; a cache that had to be dropped frees all that it held."""
        dropped: Relief | Demotion = Relief.FREED if len(self.catalogue) else Relief.NOTHING
        relieve = self.reclaimer.relieve
        step = partial(relieve, shortfall, spare, keep=keep, demote=demote, busy=busy)
        return self.guard.run(step, dropped)

    def admitted(self, record: RequestRecord, source: CheckpointRef | None) -> None:
        """Book what ``record`` adopted, or why nothing, and tell the policy what was wanted."""
        if self._takes_part(record):
            self.guard.run(partial(self._book, record, source), None)

    def _book(self, record: RequestRecord, source: CheckpointRef | None) -> None:
        known = self._source
        entry = known if known is not None and known.ref == source else None
        if record.watch.cached_tokens and entry is not None:
            record.watch.reuse_point = entry.kind
            record.watch.reuse_tier = min(entry.facts.replicas, default=None)
        elif record.watch.reuse_reason is ReuseReason.NO_MATCH:
            record.watch.reuse_reason = self._why_not(record)
        record.owner = self.catalogue.owner_of(session_of(record), entry, record.ticket)
        if entry is not None and entry.ref in self.catalogue:
            self.catalogue.put_off(entry.ref)
        self._observe(record, entry)

    def reclaim(self, shortfall: Shortfall, spare: CheckpointRef | None = None) -> bool:
        """Give up the policy's victims at once until the short axis is covered, ``spare`` only when
        there is no other; False when there is none."""
        return self.relieve(shortfall, spare, demote=False) is Relief.FREED

    def wants_capture(self, record: RequestRecord, frontier: int) -> RestorePoint | None:
        """The restore point at ``frontier`` of a prompt, if the request takes part in the cache."""
        if not self._takes_part(record):
            return None
        points = record.prepared.restore_points
        return next((point for point in points if point.frontier == frontier), None)

    def plan_capture(self, record: RequestRecord, point: RestorePoint) -> Plan | Demotion | None:
        """A feasible capture that the policy admits, with room made for it from the cache alone; or
        what must reach the host before."""
        return self.guard.run(partial(self._saves.plan, record, path_of(record), point), None)

    def captured(self, record: RequestRecord, point: RestorePoint, result: Captured) -> None:
        """Take in a restore point of a resident request."""
        record.watch.captures += 1
        self._metrics.captured()
        self._publish(record, path_of(record), point.kind, result)

    def release(self, record: RequestRecord) -> None:
        """End the resident sequence; its end is kept only after a whole, successful output that the
        policy admits."""
        self._measure(record)
        keep, path = False, None
        if self.ended_well(record):
            path = path_of(record).extended(record.tokens)
            keep = self.guard.run(partial(self._saves.admits_end, record, path), False)
        result = self._program.finish(record.held_sequence(), keep=keep)
        record.sequence = None
        self.reclaimer.changed()
        if isinstance(result, Captured):
            self._metrics.kept_end()
            if path is None:
                path = path_of(record).extended(record.tokens)
            self._publish(record, path, RestoreKind.GENERATION_END, result)

    def drop_all(self) -> None:
        """Empty the catalogue, also when the Program refuses one of the references."""
        for ref in self.catalogue.clear():
            self._program.drop(ref, CheckpointAction.DELETE)

    def _clear(self) -> int:
        """What the catalogue says is not to be trusted: forget it, and say how much it was."""
        self.reclaimer.changed()
        return len(self.catalogue.clear())

    def _measure(self, record: RequestRecord) -> None:
        """How fast its prompt was read."""
        watch = record.watch
        if watch.bound is not None and watch.first_token is not None and not watch.pauses:
            read = record.prompt_tokens - watch.cached_tokens
            self.costs.read(read, watch.first_token - watch.bound)

    def _takes_part(self, record: RequestRecord) -> bool:
        mode = record.prepared.request.cache.mode
        return self._policy.keeps and mode is CacheMode.READ_WRITE

    def may_reuse(self, record: RequestRecord) -> bool:
        """Whether its prompt may begin with something kept."""
        return self._root_reason(record) is ReuseReason.NO_MATCH

    def _root_reason(self, record: RequestRecord) -> ReuseReason:
        if not self._takes_part(record):
            return ReuseReason.DISABLED
        if record.rules.prompt_logprobs is not None:
            return ReuseReason.LIMITED_BY_SCORING
        return ReuseReason.NO_MATCH

    def _why_not(self, record: RequestRecord) -> ReuseReason:
        path = path_of(record)
        if len(path) < 2:
            return ReuseReason.TOO_SHORT
        if record.wanted is not None or record.refused_sources:
            return ReuseReason.NO_ROOM
        if self.catalogue.was_given_up(path):
            return ReuseReason.EVICTED
        other = self.catalogue.elsewhere(path)
        return ReuseReason.OTHER_TEMPLATE if other else ReuseReason.NO_MATCH

    def _observe(self, record: RequestRecord, source: CatalogueEntry | None) -> None:
        """Adopting a point is demand for it, and so is computing across a restore point."""
        start = record.watch.cached_tokens
        if source is not None:
            self._policy.observe(
                Demand(record.ticket, source.facts.frontier, source.digest, adopted=True)
            )
        crossed = [p.frontier for p in record.prepared.restore_points if p.frontier > start]
        for frontier, digest in path_of(record).digests(crossed).items():
            self._policy.observe(Demand(record.ticket, frontier, digest, adopted=False))

    def _publish(
        self, record: RequestRecord, path: TokenPath, kind: RestoreKind, result: Captured
    ) -> None:
        self.guard.run(partial(self._take_in, record, path, kind, result), None)

    def _take_in(
        self, record: RequestRecord, path: TokenPath, kind: RestoreKind, result: Captured
    ) -> None:
        owner = record.owner or self.catalogue.owner_of(session_of(record), None, record.ticket)
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

    def ended_well(self, record: RequestRecord) -> bool:
        """Whether the policy is asked to keep its end."""
        whole = isinstance(record.ending, FinishReason)
        return whole and record.ending is not FinishReason.CANCELLED and self._takes_part(record)
