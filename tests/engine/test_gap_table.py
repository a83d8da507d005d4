"""Which chunk a table of gaps allows: arithmetic by hand."""

from __future__ import annotations

import math

import pytest

from ninfer_core.engine.gap_table import MARGIN, GapTable, choose_chunk, chunk_sizes
from ninfer_core.engine.start_options import InvalidOption


def table(gaps, *, sizes=(64, 128, 256), depths=(0,), rows=3, slope=0.0, context=1000):
    """With the margin taken off, so that the choice is by ``gaps``."""
    bare = tuple(tuple(gap / MARGIN for gap in row) for row in gaps)
    return GapTable(sizes, depths, bare, rows, slope / MARGIN, context, 0.004 / MARGIN)


def test_the_margin_is_added_to_what_was_measured() -> None:
    known = GapTable((64,), (0,), ((0.010,),), 3, 0.0, 1000, 0.004)
    assert known.worst(64) == pytest.approx(0.011)
    assert known.described()["measured_ms"] == [[10.0]]
    assert known.described()["gap_ms"] == {64: 11.0}


def test_the_largest_chunk_within_the_bound_is_chosen() -> None:
    known = table(((0.010, 0.018, 0.034),))
    assert [choose_chunk(known, ms) for ms in (10, 17.9, 18, 33, 34, 1e6)] == [
        64, 64, 128, 128, 256, 256,
    ]  # fmt: skip


def test_the_worst_depth_counts_and_the_line_goes_on_to_the_end() -> None:
    known = table(((0.010, 0.020, 0.030), (0.012, 0.026, 0.030)), depths=(0, 500))
    # 2 ms, 6 ms and nothing in 500 tokens, and as much again in the 500 that were not measured.
    assert [known.worst(size) for size in known.sizes] == pytest.approx([0.014, 0.032, 0.030])
    falling = table(((0.010, 0.020, 0.030), (0.008, 0.016, 0.024)), depths=(0, 500))
    assert falling.worst(128) == pytest.approx(0.020)


def test_long_rows_take_their_share() -> None:
    known = table(((0.010, 0.020, 0.030),), rows=3, slope=2e-6, context=1000)
    assert known.worst(64) == pytest.approx(0.010 + 3 * 0.002)


def test_what_was_not_tried_is_not_chosen() -> None:
    known = table(((0.010, 0.020, math.inf), (0.011, math.inf, math.inf)), depths=(0, 500))
    assert choose_chunk(known, 1e9) == 64
    assert known.described()["gap_ms"] == {64: 12.0}
    assert known.described()["measured_ms"] == [[9.091, 18.182], [10.0]]


def test_the_smallest_gap_is_named_where_none_is_short_enough() -> None:
    known = GapTable((64, 128), (0,), ((0.010, 0.020),), 3, 1e-6, 1000, 0.004)
    with pytest.raises(InvalidOption) as caught:
        choose_chunk(known, 14)
    assert caught.value.message == (
        "max_gap_ms is 14; the smallest gap that this model reaches here is 14.3 ms, with chunks "
        "of 64 tokens at a context of 1000: 4.0 ms for a round of 3 short contexts, 3.0 ms more "
        "once these are long, 6.0 ms for the chunk, and a margin of 10%"
    )
    assert caught.value.hint.startswith("give --max-gap-ms 15 or more, ")
    assert choose_chunk(known, 15) == 64


@pytest.mark.parametrize(
    ("most", "length", "sizes"),
    [
        (1024, 8000, (64, 128, 256, 512, 1024)),
        (1000, 8000, (64, 128, 256, 512, 1000)),
        (64, 8000, (64,)),
        (48, 8000, (48,)),
        (1024, 200, (64, 128, 199)),
        (1024, 2, (1,)),
    ],
)
def test_sizes(most, length, sizes) -> None:
    assert chunk_sizes(most, length) == sizes
