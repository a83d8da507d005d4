"""A longest gap fixes the prefill chunk: the choice, the measurement, and what is left of it."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest

from ninfer_core.contract.engine import EngineOptions, EngineStats
from ninfer_core.contract.requests import CacheMode, GenerationOptions, PromptInput
from ninfer_core.contract.resources import ProgramLimits
from ninfer_core.engine import Engine, gap_measure
from ninfer_core.engine.gap_driver import NoRoom
from ninfer_core.engine.gap_measure import GapMeasure, least_context
from ninfer_core.engine.gap_table import chunk_sizes
from ninfer_core.engine.gap_times import REPEATS, SETTLING
from ninfer_core.engine.max_gap import keep_gap
from ninfer_core.engine.start_options import InvalidOption
from ninfer_core.testing.fake_instance import KeepPolicy, fake_opened
from ninfer_core.testing.fake_program import FakeProgram
from ninfer_core.testing.fake_transactions import FakeConfig

WAIT = 20.0
ROUND, TOKEN = 0.004, 0.0001
"""Seconds of a round, and of a token of a chunk at the root."""
FIRST = 30
"""How much longer a first unit of its kind takes."""


class Clock:
    """Time passes when units are launched: chunks take longer the deeper they start, and a prompt
    that is read whole takes ``whole`` seconds more. The first unit of each size in each quarter of
    the context takes ``first`` times as long, as does each of ``stalls``, counted in rounds."""

    def __init__(
        self,
        program: FakeProgram,
        deeper: float = 0.0,
        long_rows: float = 0.0,
        whole: float = 0.0,
        first: int = 1,
        stalls: frozenset[int] = frozenset(),
        slow_until: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.chunks: list[int] = []
        self.rounds: list[float] = []
        prefill, decode = program.launch_prefill, program.launch_decode

        def length(handle) -> int:
            return program.contexts.sequence(handle).frontier

        seen = set()

        def times(*kind) -> int:
            new = kind not in seen
            seen.add(kind)
            return (first if new else 1) * (2 if self.now < slow_until else 1)

        def launch_prefill(row):
            tokens, start = row.permit.need.tokens, length(row.sequence)
            self.chunks.append(tokens)
            took = tokens * TOKEN * (1 + deeper * start)
            self.now += took * times(tokens, 4 * start // program.limits.max_context)
            self.now += whole if row.permit.need.last else 0.0
            return prefill(row)

        def launch_decode(rows, *, ahead_of=None):
            took = ROUND + sum(long_rows * length(row.sequence) for row in rows)
            self.now += took * times(len(rows)) * (FIRST if len(self.rounds) in stalls else 1)
            self.rounds.append(self.now)
            return decode(rows, ahead_of=ahead_of)

        program.launch_prefill, program.launch_decode = launch_prefill, launch_decode

    def __call__(self) -> float:
        return self.now


def opened(pages=2000, **sizes):
    sizes = {"max_context": 1100, "max_concurrency": 3, "prefill_chunk": 256} | sizes
    limits = ProgramLimits(vocab_rows=64, **sizes)
    return fake_opened(limits, FakeConfig(pages=pages, slots=16))


def measured(made, bound=10.0, clocks=None, **law):
    program, frontend = made.instance.program, made.instance.frontend
    clock = Clock(program, **law)
    if clocks is not None:
        clocks.append(clock)

    def prompt(length):
        return frontend.prepare(PromptInput(token_ids=[1 + n % 60 for n in range(length)]))

    return GapMeasure(program, prompt, clock, bound).table()


def test_times_are_those_of_a_chunk_and_a_round() -> None:
    made = opened()
    known = measured(made)
    assert known.sizes == (64, 128, 256)
    assert known.depths[0] == 0
    for row in known.gaps:
        assert row == pytest.approx([size * TOKEN + ROUND for size in known.sizes])
    assert (known.rows, known.seconds_per_token, known.context) == (2, 0.0, 1100)
    assert known.round_seconds == pytest.approx(ROUND)


@pytest.mark.parametrize("law", [{}, {"deeper": 1e-4, "max_context": 12000}])
def test_units_that_are_slow_at_first_do_not_count(law, monkeypatch) -> None:
    """Each size takes 30 times as long the first time in each part of the context."""
    monkeypatch.setattr(gap_measure, "PATIENCE", 1e9)
    sizes = {"max_context": law.pop("max_context", 1100), "pages": 9000}
    slow, known = measured(opened(**sizes), first=FIRST, **law), measured(opened(**sizes), **law)
    for late, row in zip(slow.gaps, known.gaps, strict=True):
        # A slow one among five moves the median to its neighbour, which is a turn deeper.
        assert late == pytest.approx(row, rel=0.1)
    assert slow.round_seconds == pytest.approx(known.round_seconds)
    assert slow.seconds_per_token == pytest.approx(known.seconds_per_token, abs=1e-12)


def test_prompts_of_the_rows_beside_it_do_not_count() -> None:
    """The rows answer so much only, and begin again while chunks are timed."""
    made = opened(max_context=4000)
    known = measured(made, whole=0.5)
    for row in known.gaps:
        assert row == pytest.approx([size * TOKEN + ROUND for size in known.sizes])


def test_a_few_rounds_that_stand_still_do_not_count() -> None:
    stalls = frozenset(range(9, 400, 7))
    known = measured(opened(max_context=4000), stalls=stalls)
    for row in known.gaps:
        assert row == pytest.approx([size * TOKEN + ROUND for size in known.sizes])
    assert known.seconds_per_token == 0.0
    assert known.round_seconds == pytest.approx(ROUND)


def test_a_gap_beyond_the_bound_is_taken_again_before_larger_ones_are_left_out(monkeypatch) -> None:
    """A device that stands still while the smallest size is timed for the first time."""
    monkeypatch.setattr(gap_measure, "SETTLED", 0.0)
    before = 3 * 3 + gap_measure._ROUNDS  # A chunk of each size, and rounds alone.
    stalls = frozenset(range(before, before + 3 * (SETTLING + REPEATS)))
    known = measured(opened(), bound=0.03, stalls=stalls)
    assert known.gaps[0] == pytest.approx([size * TOKEN + ROUND for size in known.sizes])


def test_a_machine_that_is_slow_at_first_is_given_time() -> None:
    """All that is launched in the first 0.4 s takes twice as long, on top of first uses."""
    made = opened(max_context=4000)
    known = measured(made, slow_until=0.4, first=3)
    for row in known.gaps:
        assert row == pytest.approx([size * TOKEN + ROUND for size in known.sizes])
    assert known.round_seconds == pytest.approx(ROUND)


@pytest.mark.parametrize("began", [20, 30, 47, 60])
def test_what_disturbs_the_machine_for_a_while_falls_on_no_size_alone(began, monkeypatch) -> None:
    """Two turns of all three sizes stand still, wherever they are."""
    monkeypatch.setattr(gap_measure, "SETTLED", 0.0)
    known = measured(opened(max_context=4000), stalls=frozenset(range(began, began + 18)))
    for row in known.gaps:
        assert row == pytest.approx([size * TOKEN + ROUND for size in known.sizes])


def test_sizes_over_the_bound_are_not_tried_at_deeper_places() -> None:
    known = measured(opened(max_context=4000), bound=0.018)
    assert known.depths == (0, 768, 1792)
    assert [[gap < math.inf for gap in row] for row in known.gaps] == [
        [True, True, True], [True, True, False], [True, True, False],
    ]  # fmt: skip
    known = measured(opened(max_context=4000), bound=0.001)
    assert [[gap < math.inf for gap in row] for row in known.gaps] == 3 * [[True, False, False]]


def test_the_measure_takes_no_more_rounds_than_its_times_need(monkeypatch) -> None:
    """Three for a chunk: one of each size at first, six turns of them at each depth; and rounds
    alone, with short contexts twice and a long one."""
    monkeypatch.setattr(gap_measure, "SETTLED", 0.0)
    clocks: list[Clock] = []
    known = measured(opened(pages=9000, max_context=12000), clocks=clocks)
    assert len(known.depths) == 3
    assert len(clocks[0].rounds) == 3 * 3 + 3 * (3 * 6 * 3) + 3 * 8


@pytest.mark.parametrize(
    ("context", "most"),
    [(24, 8), (25, 64), (40, 8), (130, 64), (200, 65), (1030, 513), (2050, 1000), (2998, 1000)],
)
def test_contexts_and_chunks_that_do_not_divide_are_timed(context, most) -> None:
    made = opened(max_context=context, prefill_chunk=most)
    assert measured(made).gaps[0] == pytest.approx(
        [size * TOKEN + ROUND for size in chunk_sizes(most, context - 2)]
    )
    program = made.instance.program
    program.audit()
    assert program.capacity().available == program.capacity().total


def test_deeper_chunks_and_longer_rows_are_told_apart() -> None:
    made = opened(max_context=4000)
    known = measured(made, deeper=1e-3, long_rows=1e-7)
    assert known.depths == (0, 768, 1792)
    for depth, row in zip(known.depths, known.gaps, strict=True):
        for size, gap in zip(known.sizes, row, strict=True):
            chunk = gap - ROUND - 2e-7 * 70
            assert size * TOKEN * (1 + depth / 1000) <= chunk + 2e-5
            assert chunk <= size * TOKEN * (1 + 4000 / 1000)
    assert known.seconds_per_token == pytest.approx(1e-7, rel=0.05)


def test_nothing_is_left_and_the_chunk_is_what_it_was() -> None:
    made = opened()
    program = made.instance.program
    measured(made)
    program.audit()
    assert not program.contexts.sequences
    assert program.capacity().available == program.capacity().total
    assert program.limits.prefill_chunk == 256


def test_larger_chunks_than_the_bound_are_not_tried() -> None:
    known = measured(opened(), bound=0.011)
    assert [gap < math.inf for gap in known.gaps[0]] == [True, True, False]


def test_as_deep_as_there_is_room_beside_the_other_rows() -> None:
    """Pages of four tokens, as many as one request can fill."""
    made = opened(pages=1000, max_context=4000, prefill_chunk=64)
    assert measured(made).depths == (0, 1536, 3072)
    program = made.instance.program
    program.audit()
    assert program.capacity().available == program.capacity().total


def test_no_room_at_all_is_said_with_nothing_held() -> None:
    made = opened(pages=20, max_context=4000, prefill_chunk=64)
    with pytest.raises(NoRoom):
        measured(made)
    program = made.instance.program
    program.audit()
    assert program.capacity().available == program.capacity().total


def engine_of(made, bound, **options):
    clock = Clock(made.instance.program)
    limits = made.instance.program.limits
    settings = EngineOptions(
        max_concurrency=limits.max_concurrency,
        prefill_chunk=limits.prefill_chunk,
        max_gap_ms=bound,
        queue_timeout=None,
        **options,
    )
    return Engine(lambda: made, settings, clock=clock), clock


@pytest.mark.parametrize(("bound", "chunk"), [(11.5, 64), (19, 128), (1000, 256)])
def test_an_engine_reads_prompts_in_the_chunks_that_were_chosen(bound, chunk) -> None:
    made = dataclasses.replace(opened(), cache_policy=KeepPolicy())
    modes = set()
    prepare = made.instance.frontend.prepare

    def noted(prompt):
        modes.add(prompt.cache.mode)
        return prepare(prompt)

    made.instance.frontend.prepare = noted
    engine, clock = engine_of(made, bound)
    with engine:
        assert modes == {CacheMode.DISABLED}
        assert engine.stats() == EngineStats()
        assert not made.instance.program.contexts.checkpoints
        summary = engine.load_summary()
        assert summary.prefill_chunk == chunk
        assert summary.details["max_gap"]["chunk"] == chunk
        assert summary.details["max_gap"]["gap_ms"][chunk] <= bound
        clock.chunks.clear()
        prompt = PromptInput(token_ids=[3] * 600)
        engine.submit(prompt, GenerationOptions(max_new_tokens=1)).result(WAIT)
        full = 600 // chunk
        assert clock.chunks[:full] == [chunk] * full
        assert max(clock.chunks) == chunk


def test_a_stream_waits_no_longer_than_the_bound_while_cold_prompts_are_read() -> None:
    """vllm-project/vllm#54919, by the clock: a round is over at most 19 ms after the one before."""
    engine, clock = engine_of(opened(), 19)
    with engine:
        stream = engine.submit(PromptInput(token_ids=[3, 4, 5]), GenerationOptions(ignore_eos=True))
        for _ in range(4):
            stream.next_event(WAIT)
        clock.chunks.clear()
        first = len(clock.rounds)
        cold = [
            engine.submit(PromptInput(token_ids=[token] * 900), GenerationOptions(max_new_tokens=1))
            for token in (7, 8)
        ]
        for handle in cold:
            handle.result(WAIT)
        read = sum(clock.chunks)
        rounds = clock.rounds[first:]
    gaps = [later - earlier for earlier, later in pairwise(rounds)]
    assert read == 1800
    assert max(gaps) == pytest.approx(128 * TOKEN + ROUND)
    assert max(gaps) <= 0.019


def test_a_bound_out_of_reach_ends_the_start() -> None:
    made = opened()
    with pytest.raises(InvalidOption, match=r"max_gap_ms is 5; the smallest gap .* 11\.4 ms"):
        engine_of(made, 5)
    assert made.instance.closed == 1


def test_without_the_option_nothing_is_measured() -> None:
    engine, clock = engine_of(opened(), None)
    with engine:
        assert clock.chunks == []
        assert engine.load_summary().prefill_chunk == 256
        assert "max_gap" not in engine.load_summary().details


def test_the_choice_is_the_same_wherever_it_is_asked_for() -> None:
    """``keep_gap`` alone, with a worker that answers at once."""

    class Asked:
        def ask(self, question):
            return question()

    made = opened()
    program = made.instance.program
    found = keep_gap(19, program, made.instance.frontend, Asked(), Clock(program))
    assert (found["chunk"], program.limits.prefill_chunk) == (128, 128)


def test_a_context_too_short_to_time_is_refused() -> None:
    assert least_context(0) == 24
    made = opened(max_context=23, prefill_chunk=8)
    with pytest.raises(InvalidOption, match="max_context of 23 tokens") as caught:
        engine_of(made, 1000)
    assert "--max-context 24 or more" in caught.value.hint
