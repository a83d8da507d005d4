"""What a stream waits beside a prompt, by size of the chunks: how it is measured."""

from __future__ import annotations

import math

import pytest

from ninfer_core.engine import gap_measure
from ninfer_core.engine.gap_driver import NoRoom
from ninfer_core.engine.gap_table import chunk_sizes
from ninfer_core.engine.gap_times import REPEATS, SETTLING
from tests.engine.gap_clock import FIRST, ROUND, TOKEN, Clock, measured, opened


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
