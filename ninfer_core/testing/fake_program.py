"""A deterministic Program without a model: scarce pages and slots, programmable faults.

Tokens follow :mod:`ninfer_core.testing.fake_law`, so that a test can say exactly what a request
must produce however it was chunked, batched, paused and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ninfer_core.contract.checkpoints import (
    BindRequest,
    Captured,
    CheckpointAction,
    CheckpointFacts,
    Plan,
    Released,
    RestoreWork,
    ResumeKind,
    ResumeState,
    SequencePhase,
)
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.program import PlanOutcome
from ninfer_core.contract.resources import (
    CapacitySummary,
    CheckpointRef,
    NeverFits,
    ProgramLimits,
    ResourceVector,
    SequenceHandle,
    Shortfall,
)
from ninfer_core.contract.units import (
    ChunkRow,
    ControlRow,
    DecodeRow,
    Launched,
    PendingBatch,
    Permit,
    RowDecision,
    UnitKind,
    UnitNeed,
)
from ninfer_core.testing.fake_accounts import POOL, Amount, FakeAccounts
from ninfer_core.testing.fake_contexts import FakeContexts
from ninfer_core.testing.fake_execution import FakeExecution
from ninfer_core.testing.fake_faults import FaultPlan
from ninfer_core.testing.fake_transactions import FakeConfig, FakeTransaction

_KIND_OF_PHASE = {
    SequencePhase.PREFILL: UnitKind.PREFILL,
    SequencePhase.REPLAY: UnitKind.REPLAY,
    SequencePhase.DECODE: UnitKind.DECODE,
}


class FakeProgram:
    """Implements ``contract.program.Program``. ``nonfinite`` holds tickets whose next unit shows a
    NaN; ``journal`` records what happened; :meth:`audit` proves that nothing is lost. ``again``:
    rounds are launched again without permits where they can be. ``may_be_forgotten``: a test breaks
    the cache on purpose."""

    def __init__(
        self,
        limits: ProgramLimits,
        config: FakeConfig | None = None,
        faults: FaultPlan | None = None,
    ) -> None:
        self._limits = limits
        self.config = config or FakeConfig()
        self.faults = faults or FaultPlan()
        total = Amount(self.config.pages, self.config.slots, self.config.host)
        self.accounts = FakeAccounts(total)
        self.contexts = FakeContexts(self.config, limits, self.accounts, self.faults)
        self._execution = FakeExecution(limits, self.contexts, self.accounts, self.faults)
        self.journal = self._execution.journal
        self.nonfinite = self._execution.nonfinite
        self.closed = False
        self.may_be_forgotten = False
        self.again = False

    @property
    def limits(self) -> ProgramLimits:
        return self._limits

    def limit_chunk(self, tokens: int) -> None:
        self._limits = replace(self._limits, prefill_chunk=tokens)
        self.contexts.limit(self._limits)

    def capacity(self) -> CapacitySummary:
        return CapacitySummary(
            total=self.accounts.total.vector(),
            available=self.accounts.free.vector(),
            resident=len(self.contexts.sequences),
        )

    def facts(self, ref: CheckpointRef) -> CheckpointFacts:
        self.faults.check("facts")
        return self.contexts.kept.checkpoint(ref).facts

    def actions(self, ref: CheckpointRef) -> Mapping[CheckpointAction, ResourceVector]:
        self.faults.check("actions")
        return self.contexts.kept.actions(ref)

    def restore_work(self, ref: CheckpointRef, prepared: PreparedPrompt) -> RestoreWork | None:
        self.faults.check("restore_work")
        kept = self.contexts.kept.checkpoint(ref)
        ids = prepared.token_ids.tolist()
        same = (kept.template, kept.salt) == (prepared.identity.template, prepared.identity.salt)
        frontier = kept.facts.frontier
        if not same or frontier > len(ids) - 1 or ids[:frontier] != list(kept.ledger):
            return None
        return RestoreWork(bytes=frontier, operations=1, tokens=len(ids) - frontier)

    def joint(self, axis: str) -> Sequence[frozenset[CheckpointRef]]:
        return self.contexts.kept.joint(self.contexts.chains()) if axis == POOL else ()

    def drop(self, ref: CheckpointRef, action: CheckpointAction) -> ResourceVector:
        self.faults.check("drop")
        return self.contexts.kept.drop(ref, action)

    def forget(self) -> Sequence[CheckpointRef]:
        self.faults.check("forget")
        return self.contexts.kept.forget()

    def revoke(self, resume: ResumeState) -> ResumeState:
        return self.contexts.revoke(resume)

    def discard(self, resume: ResumeState) -> None:
        self.faults.check("discard")
        self.contexts.discard(resume)

    def plan_bind(self, request: BindRequest) -> PlanOutcome:
        self.faults.check("plan_bind")
        outcome = self.contexts.plan_bind(request)
        if isinstance(outcome, Shortfall):
            self.journal.short_binds.add(request.publication_order)
        return outcome

    def plan_capture(self, sequence: SequenceHandle) -> PlanOutcome:
        self.faults.check("plan_capture")
        return self.contexts.kept.plan_capture(sequence, self.contexts.sequence(sequence))

    def plan_demote(self, ref: CheckpointRef) -> PlanOutcome:
        self.faults.check("plan_demote")
        return self.contexts.kept.plan_demote(ref)

    def plan_pause(self, sequence: SequenceHandle, kind: ResumeKind) -> PlanOutcome:
        return self.contexts.plan_pause(sequence, kind)

    def begin(self, plan: Plan) -> FakeTransaction:
        self.faults.check("begin")
        return self.contexts.begin(plan)

    def unit_need(
        self, sequence: SequenceHandle, control: int = 0, room: int | None = None
    ) -> UnitNeed:
        held = self.contexts.sequence(sequence)
        kind = _KIND_OF_PHASE[held.phase]
        if held.in_unit:
            self._execution.require_ahead(sequence)
        if kind is UnitKind.DECODE:
            left = self._limits.max_context - held.reach
            kind = UnitKind.CONTROL if control else kind
            burst = self.config.burst if room is None else min(self.config.burst, room)
            return UnitNeed(kind, min(control or burst, left), False)
        end = self.contexts.chunk_end(held)
        last = end == (held.replay_to if kind is UnitKind.REPLAY else held.prompt_length)
        return UnitNeed(kind, end - held.frontier, last)

    def reserve(self, sequence: SequenceHandle, need: UnitNeed) -> Permit | Shortfall | NeverFits:
        self.faults.check("reserve")
        held = self.contexts.sequence(sequence)
        if held.permit is not None or held.frozen:
            raise EngineFailure("a sequence asked for a permit that it may not have now")
        if held.in_unit:
            self._execution.require_ahead(sequence)
        if need.tokens < 1:
            raise EngineFailure("a permit for no token was asked for")
        target = self.contexts.pages(held.reach + need.tokens)
        if target > self.config.pages:
            return NeverFits(POOL, target, self.config.pages)
        growth = Amount(pages=max(0, target - self.contexts.held_pages(sequence)))
        short = self.accounts.shortfall(growth)
        if short is not None:
            return short
        self.accounts.take(sequence, growth)
        held.permit = Permit(sequence, need, growth.vector(), None)
        return held.permit

    def settle(self, permit: Permit) -> None:
        permit.consume()
        held = self.contexts.sequence(permit.sequence)
        held.permit = None
        self._execution.trim(permit.sequence, held)

    def launch_prefill(self, row: ChunkRow) -> Launched:
        self.faults.check("launch")
        return self._execution.chunk(row, UnitKind.PREFILL)

    def launch_replay(self, row: ChunkRow) -> Launched:
        self.faults.check("launch")
        return self._execution.chunk(row, UnitKind.REPLAY)

    def launch_decode(
        self, rows: Sequence[DecodeRow], *, ahead_of: Launched | None = None
    ) -> Launched:
        self.faults.check("launch")
        return self._execution.decode(rows, ahead_of)

    def may_follow(
        self, launched: Launched, sequences: Sequence[SequenceHandle], *, decided: bool
    ) -> bool:
        return True

    def has_room_again(self, launched: Launched) -> bool:
        return self.again and self._execution.has_room_again(launched)

    def launch_again(self, launched: Launched) -> Launched:
        self.faults.check("launch")
        return self._execution.decode_again(launched)

    def before_results(self, rehearse: Callable[[], object]) -> None:
        """Nothing is waited for."""

    def launch_control(self, rows: Sequence[ControlRow]) -> Launched:
        self.faults.check("launch")
        opened = []
        for row in rows:
            if len(row.token_ids) != row.permit.need.tokens:
                raise EngineFailure("a control row forces more or less than it was permitted")
            one = self._execution.open(row.sequence, row.permit, UnitKind.CONTROL, None)
            one.tokens = row.token_ids
            opened.append(one)
        return self._execution.launch(UnitKind.CONTROL, opened)

    def commit(self, pending: PendingBatch, decisions: Sequence[RowDecision]) -> None:
        self.faults.check("commit")
        rows = self._execution.take(pending)
        if len(decisions) != len(rows):
            raise EngineFailure("a batch was committed with another number of decisions")
        for row, out, decision in zip(rows, pending.rows, decisions, strict=True):
            self._execution.settle(row, out, decision)
        self.faults.check("commit_end")

    def abort(self, pending: PendingBatch) -> None:
        self.faults.check("abort")
        for row in self._execution.take_back(pending):
            self._execution.close(row)

    def finish(self, sequence: SequenceHandle, *, keep: bool) -> Captured | Released:
        self.faults.check("release")
        held = self.contexts.sequence(sequence)
        if held.permit is not None or held.in_unit or held.frozen:
            raise EngineFailure("a sequence was ended in the middle of something")
        if keep and held.phase is SequencePhase.DECODE:
            return self.contexts.kept.keep(sequence, self.contexts.sequences.pop(sequence))
        return Released(self.contexts.release(sequence).vector())

    def close(self) -> None:
        self.closed = True

    @property
    def flying(self) -> set[SequenceHandle]:
        """The sequences of the units in flight."""
        return {row.handle for unit in self._execution.in_flight for row in unit.rows}

    def audit(self) -> None:
        """Raises AssertionError on a leak, a permit nobody used, or a unit in flight, apart from
        the round that was launched ahead."""
        in_flight = self._execution.in_flight
        ahead = [unit for unit in in_flight if unit.kind is UnitKind.DECODE]
        assert in_flight == ahead[: self._limits.rounds_ahead], "a unit was dropped in flight"
        assert not self._execution.pending, "a batch was neither committed nor aborted"
        unused = [h for h, s in self.contexts.sequences.items() if s.permit is not None]
        assert not unused, f"unused permits of {unused}"
        contexts = self.contexts
        living: set[object] = {*contexts.sequences, *contexts.paused, *contexts.kept.owners()}
        living |= set(contexts.shared.segments)
        contexts.audit_shared()
        if contexts.current is not None:
            living |= self.accounts.owners()
        self.accounts.audit(living | {"ballast"})
