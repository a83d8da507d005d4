"""A hypothesis machine drives the single-stepped engine through scarcity, cancels and faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ninfer_core.contract.checkpoints import PlanKind, ResumeKind
from ninfer_core.contract.requests import ConsumerMode, GenerationOptions
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.engine.core import Activity
from ninfer_core.engine.policies import OffPolicy
from ninfer_core.engine.states import LEGAL_EDGES, RUNNABLE, RequestState
from ninfer_core.testing.engine_harness import EngineHarness, Tracked
from ninfer_core.testing.fake_accounts import Amount
from ninfer_core.testing.fake_instance import KeepPolicy
from ninfer_core.testing.fake_transactions import FakeConfig

FAULTS = (
    "plan_bind begin advance reserve launch finish collect commit commit_end preview output_commit "
    "release discard"
).split()
SHARED = [7, 9, 11, 13, 8, 6, 5, 12, 10, 14, 15, 16, 17, 18, 19, 20]

PRESSED = [RequestState.CONTROL_READY, RequestState.CONTROL_READY, *sorted(RUNNABLE, key=str)]
BOTH = frozenset(ResumeKind)

configs = st.builds(
    FakeConfig,
    page_tokens=st.sampled_from([1, 4]),
    pages=st.integers(7, 40),
    slots=st.integers(1, 6),
    host=st.sampled_from([0, 9, 60, 60]),
    burst=st.sampled_from([1, 1, 3]),
    bind_steps=st.sampled_from([1, 1, 3]),
    pause_steps=st.sampled_from([1, 2]),
    state_lag=st.sampled_from([0, 9, 16]),
    pause_kinds=st.sampled_from([BOTH, BOTH, BOTH, frozenset({ResumeKind.REPLAY}), frozenset()]),
    snapshot_on_device=st.booleans(),
    bind_whole_prompt=st.booleans(),
)
requests = st.builds(
    GenerationOptions,
    sampling=st.builds(SamplingParams, seed=st.integers(0, 50) | st.none()),
    max_new_tokens=st.integers(0, 24) | st.none(),
    stop=st.sampled_from([(), (), ("ab",), ("q",)]),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, 0]),
    prompt_logprobs=st.sampled_from([None, None, 0]),
    queue_timeout=st.sampled_from([None, None, 3.0]),
    deadline=st.sampled_from([None, None, 6.0]),
    thinking_budget=st.sampled_from([None, 0, 2, 5]),
    consumer=st.sampled_from(
        [ConsumerMode.STREAMING, ConsumerMode.STREAMING, ConsumerMode.AGGREGATE]
    ),
)
prompts = st.one_of(
    st.lists(st.integers(3, 63), min_size=1, max_size=12),
    st.integers(3, len(SHARED)).map(lambda n: SHARED[:n]),
)


class EngineMachine(RuleBasedStateMachine):
    edges: ClassVar[Counter[Any]] = Counter()
    rules_run = 0
    failures = 0

    keep_always = False

    @initialize(config=configs, keep=st.booleans(), max_pending=st.integers(0, 5))
    def start(self, config: FakeConfig, keep: bool, max_pending: int) -> None:
        self.keep = keep or self.keep_always
        if self.keep_always:
            config = replace(config, state_lag=16, pause_kinds=BOTH, slots=6, pages=40)
        policy = KeepPolicy() if self.keep else OffPolicy()
        self.harness = EngineHarness(config, policy=policy, max_pending=max_pending)
        EngineMachine.rules_run += 1

    @rule(prompt=prompts, options=requests)
    def submit(self, prompt: list[int], options: GenerationOptions) -> None:
        self.count()
        self.harness.submit(prompt, options)

    @rule(prompt=prompts, seeds=st.lists(st.integers(0, 50), min_size=2, max_size=4))
    def submit_thinkers(self, prompt: list[int], seeds: list[int]) -> None:
        """Several that fill their context and close their thinking after ``seed`` tokens."""
        self.count()
        for seed in seeds:
            sampling = SamplingParams(seed=seed)
            self.harness.submit(
                prompt,
                GenerationOptions(sampling=sampling, ignore_eos=True, thinking_budget=seed % 8),
            )

    @rule(prompt=prompts, source=st.sampled_from(["free", "dead:0", "dead:2"]))
    def submit_constrained(self, prompt: list[int], source: str) -> None:
        from ninfer_core.contract.requests import ResponseFormat

        self.count()
        options = GenerationOptions(max_new_tokens=6)
        form = ResponseFormat(kind="grammar", value=source)
        self.harness.submit(prompt, options, response_format=form)

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        self.count()
        self.harness.step(steps)

    @rule(steps=st.integers(5, 12))
    def run(self, steps: int) -> None:
        self.count()
        self.harness.step(steps)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.count()
        tracked = self.pick(data, [t for t in self.harness.requests if t.handle is not None])
        if tracked is not None:
            self.harness.cancel(tracked)

    @rule(state=st.sampled_from(list(RequestState)))
    def cancel_in(self, state: RequestState) -> None:
        self.count()
        self.cancel_first(state)

    @rule(data=st.data(), close=st.booleans())
    def let_go(self, data: st.DataObject, close: bool) -> None:
        self.count()
        tracked = self.pick(data, [t for t in self.harness.requests if t.handle is not None])
        if tracked is not None:
            (self.harness.close if close else self.harness.drop)(tracked)

    @rule()
    def consume(self) -> None:
        self.count()
        for tracked in self.harness.requests:
            if tracked.handle is not None:
                self.harness.consume(tracked)

    @rule(seconds=st.sampled_from([0.5, 2.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.count()
        self.harness.clock.advance(seconds)
        self.harness.step()

    @rule(seed=st.integers(0, 50))
    def wait_too_long(self, seed: int) -> None:
        """A request whose queue timeout passes behind others that fill the lanes."""
        self.submit_thinkers(SHARED[:2], [seed] * 3)
        options = GenerationOptions(max_new_tokens=2, queue_timeout=1.0)
        self.harness.submit([seed + 3], options)
        self.harness.step(2)
        self.wait(2.0)

    @precondition(lambda self: self.harness.program.config.bind_whole_prompt)
    @rule(seed=st.integers(0, 50))
    def crowd(self, seed: int) -> None:
        """A long prompt without room, and short ones that keep coming behind it."""
        self.start_over()
        self.harness.submit([5], GenerationOptions(max_new_tokens=40, ignore_eos=True))
        self.harness.step(3)
        self.take_pages(keep_free=3)
        room = 4 * self.harness.program.config.page_tokens
        self.harness.submit([seed + 3] * room, GenerationOptions(max_new_tokens=1))
        for _ in range(8):
            self.harness.submit([5], GenerationOptions(max_new_tokens=1))
            self.harness.step(3)
            self.consume()
            self.relax()
            self.take_pages(keep_free=3)
        self.relax()

    @rule(keep_free=st.integers(0, 2))
    def squeeze(self, keep_free: int) -> None:
        self.count()
        self.take_pages(keep_free)
        self.harness.step()

    @rule()
    def relax(self) -> None:
        self.count()
        self.harness.program.accounts.give_all("ballast")
        self.harness.core.events.changed()

    @rule(kind=st.sampled_from([PlanKind.BIND, PlanKind.PAUSE]))
    def break_next_copy(self, kind: PlanKind) -> None:
        self.count()
        self.harness.program.contexts.abort_next[kind] = 1

    @rule(data=st.data())
    def poison(self, data: st.DataObject) -> None:
        self.count()
        tracked = self.pick(data, self.holders(*RUNNABLE))
        if tracked is not None:
            self.harness.program.nonfinite.add(tracked.record.ticket)

    @rule(data=st.data(), more=st.lists(st.integers(3, 63), min_size=1, max_size=9))
    def follow_up(self, data: st.DataObject, more: list[int]) -> None:
        """Another turn after a finished request: where kept ends are adopted."""
        self.count()
        ended = [t for t in self.harness.requests if t.response.ends and t.record.tokens]
        tracked = self.pick(data, ended[-4:])
        if tracked is not None:
            before = [*tracked.record.prepared.token_ids.tolist(), *tracked.record.tokens]
            prompt = [*before, *more][: self.harness.program.limits.max_context]
            options = GenerationOptions(sampling=SamplingParams(seed=len(more)), ignore_eos=True)
            self.harness.submit(prompt, options)

    @rule(broken=st.sampled_from([True, True, False]), state=st.sampled_from(PRESSED))
    def press(self, broken: bool, state: RequestState) -> None:
        """Leave no page free when an older request needs one and the youngest is in ``state``."""
        self.count()
        if state is RequestState.CONTROL_READY:
            self.submit_thinkers(SHARED[:3], [1, 2])
        self.step_until(lambda: self.pressable(state))
        if not self.harness.core.contexts.open:
            self.harness.core.resources.drop_all()
        self.take_pages(0)
        if broken:
            self.harness.program.contexts.abort_next[PlanKind.PAUSE] = 1
        self.harness.step(3)
        self.relax()
        self.harness.step(3)

    @precondition(lambda self: self.keep and self.harness.program.config.state_lag > 8)
    @rule(then=st.sampled_from(["press", "break", "cancel"]), seed=st.integers(0, 50))
    def adopt_and(self, then: str, seed: int) -> None:
        """A request that replays behind a kept end makes way for an older one, or is cancelled."""
        self.count()
        self.start_over()
        options = GenerationOptions(sampling=SamplingParams(seed=seed), ignore_eos=True)
        self.harness.submit([5, 4, seed + 3], options)
        turn = self.harness.submit(SHARED[:12], replace(options, max_new_tokens=3))
        self.step_until(lambda: turn is None or turn.response.ends == 1, 30)
        if turn is not None:
            self.harness.submit([*SHARED[:12], *turn.record.tokens, 4, 4], options)
            if then == "cancel":
                self.cancel_first(RequestState.REPLAY)
            else:
                self.press(then == "break", RequestState.REPLAY)

    @precondition(lambda self: bool(self.harness.core.scheduler.paused))
    @rule()
    def break_resume(self) -> None:
        self.count()
        self.harness.program.contexts.abort_next[PlanKind.BIND] = 1
        self.relax()
        self.harness.step(2)

    @rule(step=st.sampled_from(FAULTS), after=st.integers(0, 3), sure=st.integers(0, 2))
    def fault(self, step: str, after: int, sure: int) -> None:
        """Now and then a step raises; the engine ends, cleanly, and a new one takes over."""
        self.count()
        if sure:
            return
        harness = self.harness
        harness.faults.arm(step, RuntimeError(f"fault in {step}"), after)
        for _ in range(40):
            if harness.step() in (Activity.STOPPED, Activity.IDLE):
                break
        harness.faults.disarm()
        if harness.core.stopped:
            EngineMachine.failures += 1
            assert all(t.response.ends == 1 for t in harness.requests)
            self.settle()
            self.keep = False
            self.harness = EngineHarness(harness.program.config)

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.relax()
            self.harness.run_dry()
            self.settle()

    def settle(self) -> None:
        harness = self.harness
        assert all(t.response.ends == 1 for t in harness.requests)
        harness.check_released()
        for tracked in harness.requests:
            if tracked.handle is not None:
                harness.consume(tracked)
                self.check_events(tracked)
        harness.check()
        EngineMachine.edges.update(harness.edges)

    def check_events(self, tracked: Tracked) -> None:
        ends = [e for e in tracked.events if e is tracked.response.terminal]
        assert len(ends) <= 1
        assert not ends or tracked.events[-1] is ends[0]

    def count(self) -> None:
        EngineMachine.rules_run += 1

    def pick(self, data: st.DataObject, among: list[Tracked]) -> Tracked | None:
        """By index: what is drawn itself would be kept alive for the report of a failure."""
        return among[data.draw(st.integers(0, len(among) - 1))] if among else None

    def holders(self, *states: RequestState) -> list[Tracked]:
        live = [t for t in self.harness.requests if t.handle is not None]
        return [t for t in live if t.record.state in states]

    def take_pages(self, keep_free: int) -> None:
        accounts = self.harness.program.accounts
        spare = max(0, accounts.free.pages - keep_free)
        accounts.take("ballast", Amount(pages=spare))

    def start_over(self) -> None:
        """Close every request and give all room back."""
        self.relax()
        for tracked in self.harness.requests:
            if tracked.handle is not None:
                self.harness.close(tracked)
        self.harness.run_dry()

    def cancel_first(self, state: RequestState) -> None:
        self.step_until(lambda: bool(self.holders(state)))
        for tracked in self.holders(state)[:1]:
            self.harness.cancel(tracked)
            self.harness.step()

    def step_until(self, there: Callable[[], bool], limit: int = 12) -> None:
        for _ in range(limit):
            if there():
                return
            self.harness.step()

    def pressable(self, state: RequestState) -> bool:
        """The youngest resident is in ``state`` and an older one needs a page next."""
        program, residents = self.harness.program, self.harness.core.scheduler.residents
        if len(residents) < 2 or residents[-1].state is not state:
            return False
        if residents[-1] is self.harness.core.scheduler.protected:
            return False
        for record in residents[:-1]:
            if record.state is RequestState.DECODE_READY:
                need = program.unit_need(record.held_sequence())
                sequence = program.contexts.sequence(record.held_sequence())
                pages = program.contexts.pages(sequence.frontier + need.tokens)
                if pages > program.accounts.held(record.held_sequence()).pages:
                    return True
        return False


class AdoptingMachine(EngineMachine):
    """Every end is kept, and a part of it must be replayed by whoever adopts it."""

    keep_always = True


SETTINGS = settings(
    max_examples=220,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


def test_engine_over_scarce_resources() -> None:
    """At least 2,000 steps; every legal edge of the state table at least five times."""
    EngineMachine.edges.clear()
    EngineMachine.rules_run = EngineMachine.failures = 0
    run_state_machine_as_test(EngineMachine, settings=SETTINGS)
    run_state_machine_as_test(AdoptingMachine, settings=settings(SETTINGS, max_examples=90))
    taken = {f"{a.value} -> {b.value}": EngineMachine.edges[a, b] for a, b in LEGAL_EDGES}
    assert {edge: count for edge, count in taken.items() if count < 5} == {}
    assert EngineMachine.rules_run >= 2000
    assert EngineMachine.failures >= 10
