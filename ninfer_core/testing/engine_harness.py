"""Drives an engine core without a thread and checks its invariants after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ninfer_core.contract.cache import CachePolicy
from ninfer_core.contract.errors import Infeasible, Overloaded, RequestError
from ninfer_core.contract.events import Failed, Finished, FinishReason, GenerationEvent
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.resources import ProgramLimits
from ninfer_core.engine.core import Activity, EngineCore
from ninfer_core.engine.handle import RequestHandle
from ninfer_core.engine.ingress import Ingress
from ninfer_core.engine.lifecycle import Lifecycle
from ninfer_core.engine.outstanding import OutstandingGate
from ninfer_core.engine.policies import OffPolicy
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.response import Response
from ninfer_core.engine.states import RUNNABLE, RequestState
from ninfer_core.testing.engine_checks import (
    MOVING,
    CheckedResponse,
    check_cache,
    check_lanes,
    check_law,
    check_reuse,
)
from ninfer_core.testing.fake_clock import FakeClock
from ninfer_core.testing.fake_faults import FaultPlan
from ninfer_core.testing.fake_frontend import FakeFrontend, text_of
from ninfer_core.testing.fake_instance import FAKE_LIMITS
from ninfer_core.testing.fake_program import FakeProgram
from ninfer_core.testing.fake_transactions import FakeConfig

Edge = tuple[RequestState, RequestState]


@dataclass(slots=True, eq=False, repr=False)
class Tracked:
    """A submitted request as its caller sees it."""

    record: RequestRecord
    response: CheckedResponse
    handle: RequestHandle | None
    holds_place: bool
    let_go: bool = False
    verified: bool = False
    stop_after_step: int | None = None
    tokens_at_cancel: int | None = None
    events: list[GenerationEvent] = field(default_factory=list)

    def __repr__(self) -> str:
        record = self.record
        return f"<{record.request_id} ticket {record.ticket} {record.state.value}>"


class EngineHarness:
    """One core over the fakes. Every method that steps raises AssertionError on a broken rule."""

    def __init__(
        self,
        config: FakeConfig | None = None,
        limits: ProgramLimits = FAKE_LIMITS,
        policy: CachePolicy | None = None,
        max_pending: int = 4,
        queue_timeout: float | None = None,
        rounds_ahead: int = 0,
    ) -> None:
        limits = replace(limits, rounds_ahead=rounds_ahead)
        self.clock = FakeClock()
        self.faults = FaultPlan()
        self.program = FakeProgram(limits, config, self.faults)
        self.frontend = FakeFrontend(limits.max_context, limits.vocab_rows, self.faults)
        self.lifecycle = Lifecycle()
        self.gate = OutstandingGate(limits.max_concurrency + max_pending)
        self.core = EngineCore(
            self.program, policy or OffPolicy(), self.lifecycle, self.gate, self.clock
        )
        self.ingress = Ingress(
            self.frontend,
            limits.max_context,
            queue_timeout,
            self.lifecycle,
            self.gate,
            self.clock,
            draw_seed=lambda: 99,
            response=self._respond,
        )
        self.requests: list[Tracked] = []
        self.edges: Counter[Edge] = Counter()
        self.steps = 0
        self.activity = Activity.IDLE
        self._overtaken: Counter[int] = Counter()
        self._admitted: set[int] = set()
        self._started: set[int] = set()
        self.core.transitions.observers.append(self._observe)
        self.lifecycle.ready()

    def submit(
        self, token_ids: list[int], options: GenerationOptions, **prompt: object
    ) -> Tracked | None:
        """None when the engine is full, which must be at its limit exactly."""
        before = self.gate.count
        try:
            handle = self.ingress.submit(
                PromptInput(token_ids=token_ids, **prompt),  # type: ignore[arg-type]
                options,
            )
        except Overloaded:
            assert before == self.gate.limit, "refused although there was room"
            return None
        record = handle._record
        response = record.response
        assert isinstance(response, CheckedResponse)
        response.record = record
        tracked = Tracked(record, response, handle, self.gate.count > before)
        self.requests.append(tracked)
        return tracked

    def cancel(self, tracked: Tracked) -> None:
        assert tracked.handle is not None
        tracked.handle.cancel()
        self._expect_stop(tracked)

    def drop(self, tracked: Tracked) -> None:
        """Forget the handle, as a careless caller does."""
        tracked.handle = None
        tracked.let_go = tracked.let_go or not self.core.stopped
        self._expect_stop(tracked)

    def close(self, tracked: Tracked) -> None:
        assert tracked.handle is not None
        tracked.handle.close()
        tracked.let_go = True
        self._expect_stop(tracked)

    def consume(self, tracked: Tracked) -> None:
        """Take every event that is there."""
        assert tracked.handle is not None
        while not tracked.let_go:
            try:
                event = tracked.handle.next_event(timeout=0)
            except TimeoutError:
                return
            assert event is not None
            tracked.events.append(event)
            tracked.let_go = isinstance(event, Finished | Failed)

    def step(self, count: int = 1) -> Activity:
        for _ in range(count):
            self.steps += 1
            self.program.journal.short_binds.clear()
            self.activity = self.core.step()
            reason = self.lifecycle.availability().reason
            assert reason is None or "fault" in reason, f"{reason}: {self.describe()}"
            self.check()
        return self.activity

    def run_dry(self, limit: int = 4000) -> None:
        """Step until nothing is left to do; every request then has its end."""
        for _ in range(limit):
            if self.step() in (Activity.IDLE, Activity.STOPPED):
                break
        waiting = [t.record.state for t in self.requests if t.response.ends == 0]
        assert not waiting, f"after {limit} steps still without an end: {waiting}"

    def check(self) -> None:
        self.program.audit()
        check_cache(self.core, self.program)
        self._check_places()
        check_lanes(self.core, self.program)
        for tracked in self.requests:
            self._check_request(tracked)
        stats = self.core.stats()
        ends = sum(t.response.ends for t in self.requests)
        if not self.core.stopped:
            counted = sum(stats.finished.values()) + sum(stats.failed.values())
            assert counted == ends, f"{counted} ends were counted, {ends} happened"
            assert self.lifecycle.open_requests == len(self.requests) - ends
        if self.activity is Activity.IDLE:
            assert self.lifecycle.wait_quiet(0.0), f"idle, and not quiet: {self.describe()}"
        if self.activity is Activity.IDLE or self.core.stopped:
            assert not self.program.flying, "at rest with a round in flight"

    def describe(self) -> str:
        """Every open request with its place, for messages."""
        open_ones = [t for t in self.requests if t.response.ends == 0]
        blocked = [t.record.ticket for t in open_ones if t.record.blocked]
        return f"{open_ones}, blocked {blocked}, {self.program.accounts.free} free"

    def check_released(self) -> None:
        """Nothing is held any more, apart from what a test took away itself and kept ends."""
        contexts = self.program.contexts
        ours = {"ballast", *contexts.kept.owners(), *contexts.shared.segments}
        assert self.program.accounts.owners() <= ours, self.program.accounts.owners()
        assert not self.program.contexts.sequences
        assert not self.program.contexts.paused

    def _respond(self, on_settled: Callable[[], None] | None) -> Response:
        return CheckedResponse(on_settled, self.program.journal.committed)

    def _observe(self, subject: object, old: RequestState, new: RequestState) -> None:
        assert isinstance(subject, RequestRecord)
        self.edges[old, new] += 1
        if new is RequestState.PAUSING:
            others = self.core.intake.open.values()
            assert any(r.ticket < subject.ticket for r in others), "paused for nobody older"
        if old is RequestState.WAITING and new is RequestState.MATERIALIZING:
            self._check_turn(subject)
        if isinstance(subject.ending, Infeasible) and new is not RequestState.ENDED:
            self._check_infeasible(subject)
        if old is not RequestState.MATERIALIZING or new not in RUNNABLE:
            return
        if subject.ticket in self._admitted:
            return
        self._admitted.add(subject.ticket)
        reach = self.program.limits.max_concurrency
        for record in self.core.intake.open.values():
            if record.state is RequestState.WAITING and record.ticket < subject.ticket:
                self._overtaken[record.ticket] += 1
                assert self._overtaken[record.ticket] <= reach, "overtaken too often"

    def _check_turn(self, record: RequestRecord) -> None:
        """Whoever waits with an older ticket was tried in this cycle and had no room."""
        for other in self.core.intake.open.values():
            if other.state is RequestState.WAITING and other.ticket < record.ticket:
                assert other.ticket in self.program.journal.short_binds, "out of turn"

    def _check_infeasible(self, record: RequestRecord) -> None:
        """Nobody is given up while others, who could be paused, hold room."""
        if "no room" not in str(record.ending):
            return
        pauses_fail = any(self.edges[RequestState.PAUSING, state] for state in RUNNABLE)
        if pauses_fail or not self.program.config.pause_kinds:
            return
        accounts = self.program.accounts
        others = {o for o in accounts.owners() if accounts.held(o).pages}
        others -= {"ballast", record.sequence}
        held = record.sequence
        chain = self.program.contexts.sequence(held).chain if held is not None else None
        while chain is not None:
            others, chain = others - {chain}, chain.parent
        assert not others, f"{record.request_id} was given up while {others} hold room"

    def _expect_stop(self, tracked: Tracked) -> None:
        if tracked.stop_after_step is None:
            committed = self.program.journal.committed.get(tracked.record.ticket, [])
            tracked.tokens_at_cancel = len(committed)
            config = self.program.config
            patience = config.bind_steps + config.pause_steps + config.capture_steps
            tracked.stop_after_step = self.steps + patience + config.demote_steps

    def _check_places(self) -> None:
        """Capacity is held until the response is done and the consumer has let go, once."""
        held = sum(t.holds_place and not (t.response.ends and t.let_go) for t in self.requests)
        assert self.gate.count == held, f"{self.gate.count} places are taken, {held} in use"
        assert 0 <= held <= self.gate.limit

    def _check_request(self, tracked: Tracked) -> None:
        record, ends = tracked.record, tracked.response.ends
        if record.started and record.ticket not in self._started:
            self._started.add(record.ticket)
            check_reuse(record, (other.record for other in self.requests))
        committed = self.program.journal.committed.get(record.ticket, [])
        booked = committed[: len(record.tokens)] if self.core.stopped else committed
        assert record.tokens == booked, "the books differ from what was committed"
        assert len(committed) <= record.rules.max_new_tokens, "past the budget"
        if tracked.tokens_at_cancel is not None and not self.core.stopped:
            assert len(committed) == tracked.tokens_at_cancel, "went on after a cancel"
        if ends:
            if not tracked.verified:
                self._check_end(tracked)
            tracked.verified = True
            return
        late = tracked.stop_after_step is not None and self.steps > tracked.stop_after_step
        assert not late, f"a cancel was ignored in {record.state}"
        if record.state is RequestState.WAITING and record.queue_deadline is not None:
            assert self.clock() < record.queue_deadline, "waits past its queue deadline"
        moving = record.state in MOVING or record.capture is not None
        if record.deadline is not None and not moving:
            assert self.clock() < record.deadline, "runs past its deadline"

    def _check_end(self, tracked: Tracked) -> None:
        terminal = tracked.response.terminal
        assert terminal is not None
        if isinstance(terminal, Failed):
            assert isinstance(terminal.error, RequestError)
            return
        record, result = tracked.record, terminal.result
        assert list(result.token_ids) == record.tokens
        assert result.text == text_of(result.token_ids)
        assert result.usage.completion_tokens == len(result.token_ids)
        if result.finish_reason in (FinishReason.OUTPUT_LIMIT, FinishReason.CONTEXT_CAPACITY):
            assert len(result.token_ids) == record.rules.max_new_tokens
        if record.streaming and not tracked.let_go:
            assert tracked.response.shown == record.tokens
        check_law(record, self.program.config.burst, self.program.limits.vocab_rows)
