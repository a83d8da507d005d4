"""The requests of a warm-up: what they touch, that nothing of them remains, and how they fail."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from ninfer_core.contract.engine import AvailabilityState, EngineOptions, EngineStats
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.instance import Purpose
from ninfer_core.contract.requests import CacheMode, PromptInput
from ninfer_core.contract.resources import ProgramLimits
from ninfer_core.contract.units import RowStatus
from ninfer_core.engine import Engine
from ninfer_core.engine.warm_up import WarmUpSizes
from ninfer_core.testing.fake_instance import FakeScoring, KeepPolicy, fake_opened
from ninfer_core.testing.fake_program import FakeProgram
from ninfer_core.testing.fake_transactions import FakeConfig

WAIT = 20.0


def opened(rounds_ahead=1, config=None, **sizes):
    sizes = {"max_context": 64, "max_concurrency": 3, "prefill_chunk": 8, "vocab_rows": 64} | sizes
    limits = ProgramLimits(rounds_ahead=rounds_ahead, **sizes)
    return fake_opened(limits, config)


def warmed(made, **options):
    limits = made.instance.program.limits
    settings = EngineOptions(
        max_concurrency=limits.max_concurrency,
        prefill_chunk=limits.prefill_chunk,
        **{"warm_up": True, "max_pending": 0, **options},
    )
    return Engine(lambda: made, settings)


@pytest.mark.parametrize("rounds_ahead", [0, 1])
def test_every_number_of_rows_runs_and_nothing_remains(rounds_ahead) -> None:
    made = opened(rounds_ahead)
    program = made.instance.program
    batches = []
    launch = program.launch_decode

    def noted(rows, *, ahead_of=None):
        batches.append(len(rows))
        return launch(rows, ahead_of=ahead_of)

    program.launch_decode = noted
    with warmed(made) as engine:
        assert set(batches) == {1, 2, 3}
        assert engine.availability().state is AvailabilityState.READY
        assert engine.stats() == EngineStats()
        assert engine.round_timings() == ()
        memory = engine.memory_summary()
        assert memory.pages_free == memory.pages_total
        assert memory.state_slots_free == memory.state_slots_total
        program.audit()
        assert not program.contexts.sequences
        assert not program.contexts.checkpoints
        handle = engine.submit(PromptInput(token_ids=[5, 6, 7]))
        assert handle.request_id == "request-1"
        handle.result(WAIT)
        assert engine.stats().submitted == 1
        summary = engine.load_summary()
    assert 0 < summary.warm_up_seconds <= summary.seconds
    assert summary.memory == memory


def test_no_checkpoint_is_kept_though_the_policy_keeps_every_end() -> None:
    made = dataclasses.replace(opened(), cache_policy=KeepPolicy())
    with warmed(made):
        assert not made.instance.program.contexts.checkpoints


def test_the_engine_is_starting_while_it_warms_up() -> None:
    made = opened()
    frontend, states, modes = made.instance.frontend, [], set()
    prepare = frontend.prepare
    holder = []

    class Watched(Engine):
        def _warm_up(self):
            holder.append(self)
            return super()._warm_up()

    def noted(prompt):
        states.append(holder[0].availability().state)
        modes.add(prompt.cache.mode)
        return prepare(prompt)

    frontend.prepare = noted
    with Watched(lambda: made, EngineOptions(max_concurrency=3, prefill_chunk=8, warm_up=True)):
        assert set(states) == {AvailabilityState.STARTING}
        assert modes == {CacheMode.DISABLED}


def test_who_warms_up() -> None:
    """Where the composition root says so, unless the options say otherwise."""
    for by_root, asked, expected in [
        (False, None, False), (True, None, True), (True, False, False), (False, True, True),
    ]:  # fmt: skip
        made = dataclasses.replace(opened(), warm_up=by_root)
        with warmed(made, warm_up=asked) as engine:
            assert (engine.load_summary().warm_up_seconds > 0) is expected


@pytest.mark.parametrize(
    ("sizes", "config"),
    [
        ({"max_context": 1, "max_concurrency": 1}, FakeConfig(pages=1)),
        ({"max_context": 5, "max_concurrency": 2, "prefill_chunk": 64}, FakeConfig(pages=2)),
        ({"max_concurrency": 1, "prefill_chunk": 1}, None),
        ({"max_context": 16, "max_concurrency": 3}, FakeConfig(pages=4)),
    ],
)
def test_the_smallest_engines_warm_up_as_well(sizes, config) -> None:
    made = opened(1, config, **sizes)
    with warmed(made) as engine:
        assert engine.stats() == EngineStats()


def test_prompt_lengths() -> None:
    assert WarmUpSizes(1, 8, 64, 64).prompt_lengths() == [1, 2, 3, 4, 5, 8, 9]
    assert WarmUpSizes(1, 6, 64, 64).prompt_lengths() == [1, 2, 3, 4, 5, 6, 7]
    assert WarmUpSizes(1, 64, 10, 64).prompt_lengths() == [1, 2, 3, 4, 5, 7]
    between = [size for size in WarmUpSizes(1, 1024, 4096, 64).prompt_lengths() if size > 65]
    assert between == [
        96, 128, 129, 192, 256, 257, 384, 512, 513, 640, 768, 896, 1024, 1025,
    ]  # fmt: skip
    assert WarmUpSizes(1, 96, 4096, 64).prompt_lengths()[-4:] == [64, 65, 96, 97]
    assert WarmUpSizes(1, 1024, 200, 64).prompt_lengths()[-3:] == [129, 192, 197]


def test_a_warm_up_that_breaks_the_engine_ends_the_start() -> None:
    made = opened()
    program = made.instance.program
    assert isinstance(program, FakeProgram)
    program.faults.arm("launch", RuntimeError("no such kernel"), after=3)
    before = set(threading.enumerate())
    with pytest.raises(EngineFailure, match="RuntimeError: no such kernel"):
        warmed(made)
    assert made.instance.closed == 1
    assert set(threading.enumerate()) <= before


def test_a_warm_up_request_that_fails_ends_the_start() -> None:
    made = opened()
    program = made.instance.program
    launch = program.launch_decode

    class Broken:
        def __init__(self, launched):
            self._launched = launched

        def finish(self):
            self._launched.finish()

        def collect(self):
            pending = self._launched.collect()
            rows = tuple(dataclasses.replace(r, status=RowStatus.NONFINITE) for r in pending.rows)
            object.__setattr__(pending, "rows", rows)
            return pending

        def __getattr__(self, name):
            return getattr(self._launched, name)

    program.launch_decode = lambda rows, ahead_of=None: Broken(
        launch(rows, ahead_of=getattr(ahead_of, "_launched", None))
    )
    with pytest.raises(EngineFailure, match="warm-up failed: NonFiniteOutput"):
        warmed(made)
    assert made.instance.closed == 1


def test_what_a_warm_up_leaves_behind_is_named() -> None:
    made = opened()
    program = made.instance.program
    capacity = program.capacity

    def leaking():
        found = capacity()
        left = dataclasses.replace(found.available, pages={"main": 62})
        return dataclasses.replace(found, available=left)

    program.capacity = leaking
    with pytest.raises(EngineFailure, match="still holds 2 pages"):
        warmed(made)


def test_a_scoring_engine_scores_once() -> None:
    asked = []

    class Scoring(FakeScoring):
        def score(self, token_ids, first_target):
            asked.append(len(token_ids))
            return super().score(token_ids, first_target)

    made = fake_opened(program=Scoring())
    options = EngineOptions(purpose=Purpose.CAUSAL_SCORING, prefill_chunk=8, warm_up=True)
    with Engine(lambda: made, options) as engine:
        assert asked == [10]
        assert engine.load_summary().warm_up_seconds > 0
