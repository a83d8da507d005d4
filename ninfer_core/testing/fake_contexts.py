"""Bind, capture, pause and keep for the fake Program."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ninfer_core.contract.checkpoints import (
    BindRequest,
    Bound,
    ContextResult,
    Paused,
    Plan,
    PlanKind,
    ResumeKind,
    ResumeState,
)
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import (
    CheckpointRef,
    NeverFits,
    ProgramLimits,
    SequenceHandle,
    Shortfall,
)
from ninfer_core.testing.fake_accounts import POOL, Amount, FakeAccounts
from ninfer_core.testing.fake_checkpoints import OWNER, CaptureDetail, DemoteDetail, FakeCheckpoints
from ninfer_core.testing.fake_faults import FaultPlan
from ninfer_core.testing.fake_sequences import FakePaused, FakeSequence, revived
from ninfer_core.testing.fake_sharing import Chain, SharedPages, total
from ninfer_core.testing.fake_transactions import FakeConfig, FakeTransaction


@dataclass(frozen=True, slots=True)
class BindDetail:
    sequence: FakeSequence
    need: Amount


@dataclass(frozen=True, slots=True)
class PauseDetail:
    handle: SequenceHandle
    kind: ResumeKind
    need: Amount


class FakeContexts:
    """Sequences, paused ones and checkpoints, each an owner in the accounts."""

    def __init__(
        self, config: FakeConfig, limits: ProgramLimits, accounts: FakeAccounts, faults: FaultPlan
    ) -> None:
        self.config = config
        self.faults = faults
        self.sequences: dict[SequenceHandle, FakeSequence] = {}
        self._indices = itertools.count(1)
        self.paused: dict[ResumeState, FakePaused] = {}
        self.shared = SharedPages(accounts)
        self.kept = FakeCheckpoints(config, accounts, self.shared, self._indices)
        self.checkpoints = self.kept.all
        self._joining: Chain = None
        self.current: FakeTransaction | None = None
        self.abort_next: dict[PlanKind, int] = {}
        self._limits = limits
        self._accounts = accounts

    def sequence(self, handle: SequenceHandle) -> FakeSequence:
        if handle not in self.sequences:
            raise EngineFailure(f"stale sequence {handle}")
        return self.sequences[handle]

    def limit(self, limits: ProgramLimits) -> None:
        self._limits = limits

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.config.page_tokens)

    def held_pages(self, handle: SequenceHandle) -> int:
        """Pages of a sequence: its own, and those at its front that others read too."""
        return self._accounts.held(handle).pages + total(self.sequence(handle).chain)

    @property
    def capturing(self) -> bool:
        return self.current is not None and self.current.kind is PlanKind.CAPTURE

    def chunk_end(self, sequence: FakeSequence) -> int:
        """Where the next chunk of a prompt or a replay ends, by absolute position."""
        start, chunk = sequence.frontier, self._limits.prefill_chunk
        prompt = sequence.request.prepared
        ends = [(start // chunk + 1) * chunk, *(p.frontier for p in prompt.restore_points)]
        ends.append(sequence.replay_to if start < sequence.replay_to else prompt.length)
        return min(end for end in ends if end > start)

    def abort_reason(self, kind: PlanKind) -> str | None:
        left = self.abort_next.get(kind, 0)
        if left == 0:
            return None
        self.abort_next[kind] = left - 1
        return "the copy failed"

    def plan_bind(self, request: BindRequest) -> Plan | Shortfall | NeverFits:
        sequence = self._resident(request)
        sequence.floor_pages = self._first_pages(sequence, request)
        if self.pages(request.prepared.length) > self.config.pages:
            return NeverFits(POOL, self.pages(request.prepared.length), self.config.pages)
        if sequence.floor_pages > self.config.pages:
            return NeverFits(POOL, sequence.floor_pages, self.config.pages)
        need = Amount(pages=max(0, sequence.floor_pages - total(sequence.chain)), slots=1)
        if request.consume and not self.kept.on_device(request.source):
            return NeverFits("device replicas", 1, 0)
        short = self._accounts.shortfall(need - self._returned(request))
        return short or Plan(PlanKind.BIND, need.vector(), BindDetail(sequence, need))

    def plan_pause(self, handle: SequenceHandle, kind: ResumeKind) -> Plan | Shortfall | NeverFits:
        sequence = self.sequence(handle)
        if kind not in self.config.pause_kinds:
            return NeverFits("pause", 1, 0)
        if sequence.in_unit or sequence.permit is not None:
            raise EngineFailure("a sequence with a unit or a permit cannot be paused")
        host = 0
        if kind is ResumeKind.SNAPSHOT and not self.config.snapshot_on_device:
            host = 1 + self.pages(sequence.frontier)
        need = Amount(host=host)
        return self._accounts.shortfall(need) or Plan(
            PlanKind.PAUSE, need.vector(), PauseDetail(handle, kind, need)
        )

    def begin(self, plan: Plan) -> FakeTransaction:
        plan.consume()
        if self.current is not None:
            raise EngineFailure("a second context transaction was begun")
        if isinstance(plan.detail, BindDetail):
            self.current = self._begin_bind(plan.detail)
        elif isinstance(plan.detail, PauseDetail):
            self.current = self._begin_pause(plan.detail)
        elif isinstance(plan.detail, CaptureDetail):
            self.current = self.kept.begin_capture(plan.detail, self)
        elif isinstance(plan.detail, DemoteDetail):
            self.current = self.kept.begin_demote(plan.detail, self)
        else:
            raise EngineFailure("a plan of another program was begun")
        return self.current

    def revoke(self, resume: ResumeState) -> ResumeState:
        paused = self._take_paused(resume)
        self._accounts.give_all(resume)
        self.shared.leave(paused.chain)
        paused.chain, paused.kind = None, ResumeKind.REPLAY
        return self._park(paused, Amount())

    def discard(self, resume: ResumeState) -> None:
        self.shared.leave(self._take_paused(resume).chain)
        self._accounts.give_all(resume)

    def release(self, handle: SequenceHandle) -> Amount:
        """End a sequence that leaves nothing."""
        chain = self.sequences.pop(handle).chain
        freed = Amount(pages=self.shared.freed(chain))
        self.shared.leave(chain)
        return freed + self._accounts.give_all(handle)

    def audit_shared(self) -> None:
        """Raises AssertionError when shared pages have other users than they count."""
        kept = [checkpoint.chain for checkpoint in self.checkpoints.values()]
        self.shared.audit([*kept, *self.chains()])

    def chains(self) -> list[Chain]:
        """Of all that is no checkpoint."""
        running = [sequence.chain for sequence in self.sequences.values()]
        return [*running, *(paused.chain for paused in self.paused.values()), self._joining]

    def _begin_bind(self, detail: BindDetail) -> FakeTransaction:
        sequence, need = detail.sequence, detail.need
        source = sequence.request.source
        handle = SequenceHandle(OWNER, next(self._indices), 1)
        kept, consume = self._returned(sequence.request), sequence.request.consume
        self._accounts.give(source, kept)
        if isinstance(source, CheckpointRef):
            self._joining = self.shared.join(sequence.chain)
            self.kept.leased = source
        self._accounts.take(handle, need)

        def settle() -> None:
            self._joining = self.kept.leased = None

        def apply() -> ContextResult:
            settle()
            if isinstance(source, ResumeState):
                self._take_paused(source)
                self._accounts.give_all(source)
            elif consume:
                self.kept.retire(source)
                self.kept.consumed += 1
            self.sequences[handle] = sequence
            moved = len(sequence.ledger) if isinstance(source, ResumeState) else 0
            return Bound(
                sequence=handle,
                phase=sequence.phase,
                reused_tokens=sequence.replay_to or sequence.frontier,
                reuse_reason=sequence.request.source_reason,
                moved_bytes=moved,
                retired=(source,) if isinstance(source, CheckpointRef) and consume else (),
            )

        def undo() -> None:
            self._accounts.give_all(handle)
            self.shared.leave(self._joining)
            settle()
            self._accounts.take(source, kept)

        return FakeTransaction(PlanKind.BIND, self.config.bind_steps, apply, undo, self)

    def _begin_pause(self, detail: PauseDetail) -> FakeTransaction:
        handle, kind, need = detail.handle, detail.kind, detail.need
        sequence = self.sequence(handle)
        sequence.frozen = True
        self._accounts.take(handle, need)

        def apply() -> ContextResult:
            del self.sequences[handle]
            self._accounts.give_all(handle)
            holds, chain = need, None
            if kind is ResumeKind.SNAPSHOT and self.config.snapshot_on_device:
                holds = Amount(pages=self.pages(sequence.frontier) - total(sequence.chain))
                chain = sequence.chain
            else:
                self.shared.leave(sequence.chain)
            paused = FakePaused(
                sequence.request,
                sequence.ledger,
                sequence.frontier,
                sequence.state,
                sequence.replay_to,
                kind,
                chain,
            )
            return Paused(self._park(paused, holds))

        def undo() -> None:
            sequence.frozen = False
            self._accounts.give(handle, need)

        return FakeTransaction(PlanKind.PAUSE, self.config.pause_steps, apply, undo, self)

    def _park(self, paused: FakePaused, holds: Amount) -> ResumeState:
        resume = ResumeState(
            OWNER,
            next(self._indices),
            1,
            paused.kind,
            paused.frontier,
            len(paused.ledger),
            (holds + Amount(pages=total(paused.chain))).vector(),
        )
        self.paused[resume] = paused
        self._accounts.take(resume, holds)
        return resume

    def _take_paused(self, resume: ResumeState) -> FakePaused:
        if resume not in self.paused:
            raise EngineFailure(f"stale resume state {resume}")
        return self.paused.pop(resume)

    def _returned(self, request: BindRequest) -> Amount:
        """What the source gives back for the sequence that it becomes."""
        held = self._accounts.held(request.source)
        if isinstance(request.source, ResumeState):
            return Amount(pages=held.pages)
        return held if request.consume else Amount()

    def _resident(self, request: BindRequest) -> FakeSequence:
        """The sequence that a bind would install."""
        source = request.source
        if isinstance(source, ResumeState):
            paused = self.paused.get(source)
            if paused is None:
                raise EngineFailure(f"stale resume state {source}")
            return revived(request, paused)
        ledger = [int(token) for token in request.prepared.token_ids]
        sequence = FakeSequence(request, ledger)
        if source is not None:
            checkpoint = self.kept.checkpoint(source)
            sequence.chain = checkpoint.chain
            sequence.frontier, sequence.state = checkpoint.state_frontier, checkpoint.state
            sequence.replay_to = checkpoint.facts.frontier
        return sequence

    def _first_pages(self, sequence: FakeSequence, request: BindRequest) -> int:
        """Pages that a bind reserves: the old frontier and, for a resume, its first new unit."""
        target = max(sequence.frontier, sequence.replay_to)
        if not isinstance(request.source, ResumeState):
            whole = self.config.bind_whole_prompt
            return self.pages(sequence.prompt_length if whole else sequence.frontier)
        if not self.config.reserve_resume:
            return self.pages(sequence.frontier)
        new = self.config.burst + len(sequence.ledger) - target
        if target < sequence.prompt_length:
            new = min(self._limits.prefill_chunk, sequence.prompt_length - target)
        return self.pages(min(target + new, self._limits.max_context))
