"""A hypothesis machine drives the single-stepped engine through scarcity, cancels and faults."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from ninfer_core.contract.checkpoints import PlanKind
from ninfer_core.contract.requests import GenerationOptions, ResponseFormat
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.engine.core import Activity
from ninfer_core.engine.states import LEGAL_EDGES, RUNNABLE, RequestState
from ninfer_core.testing.engine_machine import SHARED, HarnessMachine, prompts, requests

FAULTS = (
    "plan_bind begin advance reserve launch finish collect commit commit_end preview output_commit "
    "release discard"
).split()
PRESSED = [RequestState.CONTROL_READY, RequestState.CONTROL_READY, *sorted(RUNNABLE, key=str)]


class EngineMachine(HarnessMachine):
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
        self.give_room_back()

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
            self.tally["failures"] += 1
            assert all(t.response.ends == 1 for t in harness.requests)
            self.settle()
            self.keep = False
            self.harness = self.fresh(harness.program.config)


class AdoptingMachine(EngineMachine):
    """Every end is kept, and a part of it must be replayed by whoever adopts it."""

    keep_always = True


class AheadMachine(EngineMachine):
    """The same with one decode round behind the one that is not collected."""

    rounds_ahead = 1


class AheadAdoptingMachine(AdoptingMachine):
    rounds_ahead = 1


class AgainMachine(AheadMachine):
    """The same over a Program that launches a round again without permits."""

    again = True


SETTINGS = settings(
    max_examples=120,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


def test_engine_over_scarce_resources() -> None:
    """At least 2,000 steps; every legal edge of the state table at least five times, over Programs
    that launch nothing ahead and over such that do."""
    EngineMachine.edges.clear()
    EngineMachine.tally.clear()
    run_state_machine_as_test(EngineMachine, settings=SETTINGS)
    run_state_machine_as_test(AheadMachine, settings=SETTINGS)
    short = settings(SETTINGS, max_examples=45)
    run_state_machine_as_test(AdoptingMachine, settings=short)
    run_state_machine_as_test(AheadAdoptingMachine, settings=short)
    run_state_machine_as_test(AgainMachine, settings=short)
    taken = {f"{a.value} -> {b.value}": EngineMachine.edges[a, b] for a, b in LEGAL_EDGES}
    assert {edge: count for edge, count in taken.items() if count < 5} == {}
    assert EngineMachine.tally["rules"] >= 2000
    assert EngineMachine.tally["failures"] >= 10
    assert EngineMachine.tally["ahead"] >= 2000
    assert EngineMachine.tally["void"] >= 100
    assert EngineMachine.tally["again"] >= 100
