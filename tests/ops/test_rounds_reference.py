"""The ends of a round, word by word."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ninfer_core.ops.contracts.rounds import ROUND_MISMATCH, LaneTables, RoundRing, RoundRows
from ninfer_core.ops.contracts.values import TokenCounts

DEPTH, LANES, CHANGES, PAGES, V, ROWS = 3, 4, 5, 6, 10, 2
GARBAGE = 0x7F7F7F7F


def filled(*shape: int, dtype: torch.dtype = torch.int32, value: int = GARBAGE) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype)


@pytest.fixture
def world():
    """Everything that the two ops touch, full of garbage where they are to write."""
    return SimpleNamespace(
        ring=RoundRing(
            filled(DEPTH, 4 + 8 * LANES + 3 * CHANGES), filled(DEPTH, 4 + 2 * LANES),
            torch.zeros(1, dtype=torch.int32), LANES, CHANGES,
        ),
        tables=LaneTables(
            torch.tensor([50, 51, 52, 53], dtype=torch.int32), filled(LANES, PAGES, value=-1)
        ),
        rows=RoundRows(
            filled(ROWS), filled(ROWS, dtype=torch.int64), filled(ROWS), filled(ROWS), filled(ROWS),
            filled(ROWS, dtype=torch.int64), filled(ROWS, dtype=torch.int64), filled(3, ROWS),
            filled(ROWS),
        ),
        counts=TokenCounts(filled(LANES, V, value=0), torch.zeros(LANES, V, dtype=torch.bool)),
    )  # fmt: skip


def write(ring: RoundRing, number: int, rows: list[list[int]], changes: list[list[int]]) -> None:
    words = [number, len(rows), len(changes), 0]
    for row in rows:
        words += [*row, 0, 0]
    place = ring.ingress[number % DEPTH]
    place[: len(words)] = torch.tensor(words, dtype=torch.int32)
    flat = [word for change in changes for word in change]
    first = 4 + 8 * LANES
    place[first : first + len(flat)] = torch.tensor(flat, dtype=torch.int32)


#        lane, token, start, slot, target, rope delta
GIVEN = [[2, -1, 70, 5, 6, -9], [0, 33, 0, 1, 2, 4]]


def test_begin_spreads_a_place(ops, world):
    write(world.ring, 0, GIVEN, [[2, 1, 77], [0, 0, 78], [2, 1, 79]])
    ops.begin_round(world.ring, world.tables, world.rows)
    rows = world.rows
    assert rows.ids.tolist() == [52, 33]
    assert rows.lanes.tolist() == [2, 0]
    assert rows.table_rows.tolist() == [2, 0]
    assert rows.starts.tolist() == [70, 0]
    assert rows.live.tolist() == [1, 1]
    assert rows.slots.tolist() == [5, 1]
    assert rows.targets.tolist() == [6, 2]
    assert rows.positions.tolist() == [[61, 4]] * 3
    assert rows.chosen.tolist() == [71, 1]
    expected = filled(LANES, PAGES, value=-1)
    expected[2, 1], expected[0, 0] = 79, 78
    assert torch.equal(world.tables.block_tables, expected)
    assert world.ring.egress[0, :4].tolist() == [GARBAGE, 0, GARBAGE, GARBAGE]
    assert int(world.ring.counter) == 0


def test_publish_leaves_results(ops, world):
    world.ring.counter.fill_(4)
    world.rows.lanes.copy_(torch.tensor([2, 0]))
    world.counts.generated[2, 9] = 3
    tokens, broken = torch.tensor([9, 1], dtype=torch.int32), torch.tensor([False, True])
    ops.publish_round(world.ring, world.tables, world.rows, world.counts, tokens, broken)
    assert world.tables.tokens.tolist() == [1, 51, 9, 53]
    assert world.counts.generated[2, 9] == 4
    assert world.counts.generated[0, 1] == 1
    assert int(world.counts.generated.sum()) == 5
    answer = world.ring.egress[4 % DEPTH].tolist()
    assert answer == [5, GARBAGE, 2, GARBAGE, 9, 0, 1, 1, *[GARBAGE] * 4]
    assert (world.ring.egress[[0, 2]] == GARBAGE).all()
    assert int(world.ring.counter) == 5


@pytest.mark.parametrize("word", [0, 1])
def test_another_round_or_size_is_a_mismatch(ops, world, word):
    write(world.ring, 0, GIVEN, [])
    ops.begin_round(world.ring, world.tables, world.rows)
    assert world.ring.egress[0, 1] == 0
    world.ring.ingress[0, word] += 1
    ops.begin_round(world.ring, world.tables, world.rows)
    assert world.ring.egress[0, 1] == ROUND_MISMATCH


def test_rounds_go_around_the_ring(ops, world):
    """Each round feeds the lane's own token to the next; places are taken in turn."""
    for number in range(2 * DEPTH + 1):
        first = 40 if number == 0 else -1
        write(world.ring, number, [[3, first, number, 0, 0, 0], [1, 7, 2, 0, 0, 0]], [])
        ops.begin_round(world.ring, world.tables, world.rows)
        assert world.rows.ids.tolist() == [40 + number if number == 0 else number % V, 7]
        tokens = torch.tensor([(number + 1) % V, 5], dtype=torch.int32)
        sound = torch.zeros(ROWS, dtype=torch.bool)
        ops.publish_round(world.ring, world.tables, world.rows, world.counts, tokens, sound)
        answer = world.ring.egress[number % DEPTH]
        assert answer[[0, 1, 2, 4]].tolist() == [number + 1, 0, 2, (number + 1) % V]
    assert world.ring.egress[:, 0].tolist() == [7, 5, 6]
    assert world.counts.generated[1, 5] == 7
