"""What a hypothesis machine over the engine harness draws from, finds and checks at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from ninfer_core.contract.cache import CachePolicy
from ninfer_core.contract.checkpoints import ResumeKind
from ninfer_core.contract.requests import ConsumerMode, GenerationOptions
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.engine.policies import OffPolicy
from ninfer_core.engine.states import RequestState
from ninfer_core.testing.engine_harness import Edge, EngineHarness, Tracked
from ninfer_core.testing.fake_accounts import Amount
from ninfer_core.testing.fake_instance import FAKE_LIMITS, KeepPolicy
from ninfer_core.testing.fake_transactions import FakeConfig

SHARED = [7, 9, 11, 13, 8, 6, 5, 12, 10, 14, 15, 16, 17, 18, 19, 20]
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


class HarnessMachine(RuleBasedStateMachine):
    """A machine without rules; ``edges`` and ``tally`` add up over all runs of all subclasses."""

    edges: ClassVar[Counter[Edge]] = Counter()
    tally: ClassVar[Counter[str]] = Counter()

    keep_always = False
    rounds_ahead = 0
    again = False
    limits = FAKE_LIMITS

    @initialize(config=configs, keep=st.booleans(), max_pending=st.integers(0, 5))
    def start(self, config: FakeConfig, keep: bool, max_pending: int) -> None:
        self.keep = keep or self.keep_always
        if self.keep_always:
            config = replace(config, state_lag=16, pause_kinds=BOTH, slots=6, pages=40)
        self.harness = self.fresh(config, max_pending)
        self.tally["rules"] += 1

    def fresh(self, config: FakeConfig, max_pending: int = 4) -> EngineHarness:
        """An engine that has seen nothing."""
        harness = EngineHarness(
            config,
            self.limits,
            self.policy(),
            max_pending=max_pending,
            rounds_ahead=self.rounds_ahead,
        )
        harness.program.again = self.again
        return harness

    def policy(self) -> CachePolicy:
        return KeepPolicy() if self.keep else OffPolicy()

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.give_room_back()
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
        self.edges.update(harness.edges)
        self.tally["ahead"] += harness.program.journal.rounds_ahead
        self.tally["again"] += harness.program.journal.rounds_again
        self.tally["void"] += harness.program.journal.void_rows

    def check_events(self, tracked: Tracked) -> None:
        ends = [e for e in tracked.events if e is tracked.response.terminal]
        assert len(ends) <= 1
        assert not ends or tracked.events[-1] is ends[0]

    def count(self) -> None:
        self.tally["rules"] += 1

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

    def give_room_back(self) -> None:
        self.harness.program.accounts.give_all("ballast")
        self.harness.core.events.changed()

    def start_over(self) -> None:
        """Close every request and give all room back."""
        self.give_room_back()
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
                if pages > program.contexts.held_pages(record.held_sequence()):
                    return True
        return False
