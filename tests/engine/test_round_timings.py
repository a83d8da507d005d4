"""Where the host's time goes in a round: each part is booked once and under its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import PromptInput
from ninfer_core.engine import Engine, core, publication
from ninfer_core.engine.round_timings import CycleTimes, RoundTimings
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.fake_instance import FAKE_LIMITS, fake_factory
from ninfer_core.testing.fake_law import continuation

PARTS = ("engine", "submit", "post", "output", "wait")


class Nanoseconds:
    """A counter that stands still but for what a test says a call takes."""

    def __init__(self, patch):
        self.now = 0
        self._patch = patch
        for module in (core, publication):
            patch.setattr(module, "perf_counter_ns", lambda: self.now)

    def slow(self, owner, name, microseconds, then=None):
        real = getattr(owner, name)

        def slowed(*args, **rest):
            self.now += microseconds * 1000
            outcome = real(*args, **rest)
            if then is not None:
                then(outcome)
            return outcome

        self._patch.setattr(owner, name, slowed)


def parts(timing):
    return tuple(round(getattr(timing, name), 3) for name in PARTS)


@pytest.mark.parametrize("rounds_ahead", [0, 1])
def test_each_part_is_booked_under_its_name(options, monkeypatch, rounds_ahead):
    harness = EngineHarness(rounds_ahead=rounds_ahead)
    both = [harness.submit([5 + s], options(30, seed=s, ignore_eos=True)) for s in range(2)]
    harness.step(7)
    time = Nanoseconds(monkeypatch)
    program = harness.program
    time.slow(program, "reserve", 3)
    time.slow(program, "launch_decode", 11)
    time.slow(program, "commit", 5)
    time.slow(
        program._execution, "_outcome", 50, lambda made: setattr(made, "waited_seconds", 40e-6)
    )
    for tracked in both:
        time.slow(tracked.record.session, "preview", 2)
        time.slow(tracked.record.response, "put", 1)
    for unit in program._execution.in_flight:
        unit._outcome = program._execution._outcome
    before = len(harness.core.round_timings())
    harness.step(3)
    taken = harness.core.round_timings()[before:]
    assert [parts(one) for one in taken] == [(6.0, 11.0, 15.0, 6.0, 40.0)] * 3
    assert [(one.rows, one.alone, round(one.host, 3)) for one in taken] == [(2, True, 38.0)] * 3


def test_a_round_beside_a_chunk_is_not_alone(options):
    harness = EngineHarness()
    harness.submit([5], options(20, ignore_eos=True))
    harness.step(3)
    harness.submit(list(range(3, 35)), options(1))
    harness.run_dry()
    alone = [one.alone for one in harness.core.round_timings()]
    assert len(alone) == harness.core.stats().decode_rounds == 19
    assert alone.count(False) == 5, "one for each chunk of eight, and the last position alone"


def test_the_ring_keeps_the_latest():
    rounds = RoundTimings(kept=3)
    for number in range(1, 6):
        times = CycleTimes()
        times.rows, times.units = number, 1
        times.collect, times.commit, times.waited = 500, 100, 300e-9
        rounds.add(times, engine=1000 * number, submit=2000, settle=900)
    kept = rounds.snapshot()
    assert [one.rows for one in kept] == [3, 4, 5]
    assert [parts(one) for one in kept] == [(n, 2.0, 0.3, 0.3, 0.3) for n in (3.0, 4.0, 5.0)]


@pytest.mark.parametrize("rounds_ahead", [0, 1])
def test_an_engine_tells_them_from_any_thread(options, rounds_ahead):
    limits = replace(FAKE_LIMITS, rounds_ahead=rounds_ahead)
    with Engine(fake_factory(limits), EngineOptions(max_concurrency=3)) as engine:
        handles = [
            engine.submit(
                engine.prepare(PromptInput(token_ids=[seed + 3] * 4)), options(20, seed=seed)
            )
            for seed in range(5)
        ]
        for seed, handle in enumerate(handles):
            expected = continuation([seed + 3] * 4, seed, 64, 20)
            assert handle.result(20).token_ids == tuple(expected)
        timings = engine.round_timings()
    assert len(timings) > 10
    assert all(one.host > 0 and one.rows <= 3 for one in timings)
