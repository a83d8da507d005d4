"""The state machine with captures: prompts that share beginnings, salts, sessions, lost copies."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from ninfer_core.contract.cache import CachePolicy
from ninfer_core.contract.checkpoints import PlanKind
from ninfer_core.contract.frontend import RestoreKind
from ninfer_core.contract.requests import (
    CacheMode,
    CacheRequest,
    ChatOptions,
    GenerationOptions,
)
from ninfer_core.contract.resources import ProgramLimits, Shortfall
from ninfer_core.contract.reuse import Tier
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.engine.policies_reuse import ReusePolicy
from ninfer_core.testing.engine_machine import configs
from ninfer_core.testing.fake_instance import KeepPolicy
from ninfer_core.testing.fake_transactions import FakeConfig


def _rules() -> ModuleType:
    """The module of the plain machine."""
    path = Path(__file__).with_name("test_machine.py")
    spec = importlib.util.spec_from_file_location("plain_machine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


plain = _rules()
BASES = [[3 + (n * step) % 61 for n in range(120)] for step in (7, 11)]
KINDS = [kind for kind in RestoreKind if kind is not RestoreKind.GENERATION_END]
PLACES = [3, 9, 20, 40, 63, 64, 65, 80, 100]
caches = st.builds(
    CacheRequest,
    mode=st.sampled_from([*[CacheMode.READ_WRITE] * 5, CacheMode.DISABLED]),
    session_key=st.sampled_from([None, "a", "b"]),
    salt=st.sampled_from([None, None, None, "s"]),
)


class CacheMachine(plain.EngineMachine):
    """Two bases of 120 tokens of which requests read some and go on in their own way."""

    limits = ProgramLimits(max_context=160, max_concurrency=3, prefill_chunk=16, vocab_rows=64)
    keep = True
    submit_thinkers = submit_constrained = wait_too_long = crowd = press = adopt_and = None
    cancel_in = wait = poison = run = None
    """Rules of the plain machine that have nothing to do with the cache."""

    @initialize(
        config=configs,
        pages=st.integers(45, 120),
        slots=st.integers(3, 12),
        steps=st.sampled_from([1, 3, 3]),
        reuse=st.booleans(),
        host=st.sampled_from([0, 40, 90, 400, 400]),
        demote_steps=st.sampled_from([1, 2, 3]),
    )
    def start(
        self,
        config: FakeConfig,
        pages: int,
        slots: int,
        steps: int,
        reuse: bool,
        host: int,
        demote_steps: int,
    ) -> None:
        self.reuse = reuse
        config = replace(config, captures=True, capture_steps=steps, page_tokens=4)
        config = replace(config, pages=pages, slots=slots, host=host, demotes=host > 0)
        config = replace(config, demote_steps=demote_steps)
        self.harness = self.fresh(config)
        self.tally["rules"] += 1

    def policy(self) -> CachePolicy:
        return ReusePolicy(least_gain=2) if self.reuse else KeepPolicy()

    @rule(
        base=st.sampled_from(BASES),
        cut=st.integers(4, 120),
        tail=st.lists(st.integers(3, 63), min_size=1, max_size=6),
        places=st.lists(st.sampled_from(PLACES), max_size=4),
        kind=st.sampled_from(KINDS),
        cache=caches,
        seed=st.integers(0, 9),
    )
    def chat(
        self,
        base: list[int],
        cut: int,
        tail: list[int],
        places: list[int],
        kind: RestoreKind,
        cache: CacheRequest,
        seed: int,
    ) -> None:
        self.count()
        options = GenerationOptions(sampling=SamplingParams(seed=seed), max_new_tokens=1 + seed)
        points = [(place, kind.value) for place in places]
        template = "other" if seed == 9 else "fake"
        self.harness.submit(
            [*base[:cut], *tail],
            options,
            cache=cache,
            chat=ChatOptions(template_kwargs={"points": points, "template": template}),
        )

    @rule(base=st.sampled_from(BASES), cut=st.integers(30, 110), times=st.integers(2, 3))
    def shared(self, base: list[int], cut: int, times: int) -> None:
        """Questions behind one long beginning, one at a time."""
        points = [(cut, RestoreKind.SYSTEM_AND_TOOLS.value)]
        for number in range(times):
            self.count()
            self.harness.submit(
                [*base[:cut], 5 + number],
                GenerationOptions(sampling=SamplingParams(seed=number), max_new_tokens=2),
                chat=ChatOptions(template_kwargs={"points": points}),
            )
            self.harness.step(12)
            self.consume()

    @rule(base=st.sampled_from(BASES), seed=st.integers(0, 9), salted=st.booleans())
    def stranger(self, base: list[int], seed: int, salted: bool) -> None:
        """A known beginning under a salt that nobody had, or from who takes no part."""
        self.shared(base, 50, 2)
        cache = CacheRequest(mode=CacheMode.DISABLED)
        if salted:
            cache = CacheRequest(salt=f"salt {self.tally['rules']}")
        tracked = self.harness.submit(
            base[: 60 + seed],
            GenerationOptions(sampling=SamplingParams(seed=seed), max_new_tokens=1),
            cache=cache,
            chat=ChatOptions(template_kwargs={"points": [(50, KINDS[0].value)]}),
        )
        self.harness.step(8)
        assert tracked is None or tracked.record.watch.cached_tokens == 0, "reused from nobody"

    @precondition(lambda self: self.harness.program.config.bind_steps > 1)
    @rule(base=st.sampled_from(BASES))
    def give_up_in_a_bind(self, base: list[int]) -> None:
        """Everything that may go goes while a checkpoint is being adopted."""
        self.shared(base, 40, 2)
        self.harness.submit([*base[:40], 9, 9], GenerationOptions(max_new_tokens=2))
        contexts = self.harness.core.contexts
        self.step_until(lambda: contexts.current is not None and bool(contexts.current.source))
        if contexts.current is not None and contexts.current.source is not None:
            self.tally["leased"] += 1
            while self.harness.core.resources.reclaim(Shortfall("state_slots", 1, 0)):
                continue
        self.harness.step(3)

    @rule(axis=st.sampled_from(["state_slots", "main"]))
    def give_up(self, axis: str) -> None:
        self.count()
        self.tally["given up"] += self.harness.core.resources.reclaim(Shortfall(axis, 1, 0))
        self.harness.core.events.changed()

    @rule(times=st.integers(1, 2))
    def break_captures(self, times: int) -> None:
        self.count()
        self.harness.program.contexts.abort_next[PlanKind.CAPTURE] = times

    @rule(times=st.integers(1, 2))
    def break_demotions(self, times: int) -> None:
        self.count()
        self.harness.program.contexts.abort_next[PlanKind.DEMOTE] = times

    @precondition(lambda self: self.reuse and self.harness.program.config.demotes)
    @rule(base=st.sampled_from(BASES), cut=st.integers(60, 110), seed=st.integers(0, 9))
    def come_back(self, base: list[int], cut: int, seed: int) -> None:
        """Others take the room of a conversation before it goes on."""
        self.shared(base, cut, 1)
        for other in BASES:
            prompt = [3 + seed, *other[: 119 - seed]]
            self.harness.submit(
                prompt,
                GenerationOptions(sampling=SamplingParams(seed=seed), max_new_tokens=2),
                chat=ChatOptions(template_kwargs={"points": [(100, KINDS[0].value)]}),
            )
            self.harness.step(14)
            self.consume()
        self.shared(base, cut, 2)

    @rule(base=st.sampled_from(BASES), cut=st.integers(20, 90), crowd=st.integers(0, 3))
    def go_on(self, base: list[int], cut: int, crowd: int) -> None:
        """A conversation goes on from its end while others want room."""
        self.shared(base, cut, 1)
        said = self.harness.requests[-1].record
        for seed in range(crowd):
            self.harness.submit([7 + seed] * 50, GenerationOptions(max_new_tokens=9))
        self.harness.submit(
            [*said.prepared.token_ids.tolist(), *said.tokens, 9, 9],
            GenerationOptions(max_new_tokens=2),
        )
        self.harness.step(6)

    @precondition(lambda self: self.harness.program.config.capture_steps > 1)
    @rule(
        then=st.sampled_from(["cancel", "close", "reclaim", "squeeze"]),
        tail=st.lists(st.integers(3, 63), min_size=30, max_size=40),
    )
    def in_capture(self, then: str, tail: list[int]) -> None:
        """Something happens while a request stands in a capture that takes some cycles."""
        self.count()
        if len(self.harness.core.scheduler.residents) > 1:
            self.start_over()
        points = [(place, RestoreKind.USER_MESSAGE.value) for place in (9, 20, 28)]
        kwargs = ChatOptions(template_kwargs={"points": points})
        for _ in range(2):
            self.harness.submit(tail, GenerationOptions(max_new_tokens=3), chat=kwargs)
        contexts = self.harness.program.contexts
        self.step_until(lambda: contexts.capturing, 20)
        if not contexts.capturing:
            return
        self.tally[f"{then} in capture"] += 1
        record = self.harness.core.contexts.current.record
        tracked = next(t for t in self.harness.requests if t.record is record)
        if then == "reclaim":
            self.harness.core.resources.reclaim(Shortfall("main", 1, 0))
        elif then == "squeeze":
            self.squeeze(0)
        elif tracked.handle is not None:
            (self.harness.cancel if then == "cancel" else self.harness.close)(tracked)
        self.harness.step(2)

    def settle(self) -> None:
        super().settle()
        records = [tracked.record for tracked in self.harness.requests]
        self.tally["adopted"] += sum(r.watch.cached_tokens > 0 for r in records)
        self.tally["captured"] += self.harness.program.contexts.kept.captured
        self.tally["demoted"] += self.harness.program.contexts.kept.demoted
        self.tally["from host"] += sum(r.watch.reuse_tier is Tier.HOST for r in records)
        self.tally["taken over"] += self.harness.program.contexts.kept.consumed
        self.tally["deep"] += sum(r.watch.cached_tokens >= 64 for r in records)


class AheadCacheMachine(CacheMachine):
    rounds_ahead = 1


SHORT = settings(plain.SETTINGS, max_examples=70, stateful_step_count=30)


def test_captures_and_adoptions_over_scarce_resources() -> None:
    CacheMachine.tally.clear()
    run_state_machine_as_test(CacheMachine, settings=SHORT)
    run_state_machine_as_test(AheadCacheMachine, settings=SHORT)
    tally = CacheMachine.tally
    assert tally["captured"] >= 300, tally
    assert tally["adopted"] >= 100, tally
    assert tally["deep"] >= 20, tally
    assert tally["given up"] >= 10, tally
    assert tally["failures"] >= 1, tally
    assert tally["ahead"] >= 200, tally
    for event in ("cancel", "close", "reclaim", "squeeze"):
        assert tally[f"{event} in capture"] >= 2, tally
    assert tally["leased"] >= 5, tally
    for event in ("demoted", "from host", "taken over"):
        assert tally[event] >= 10, tally
