"""The ends of a round in Triton, against the reference round by round."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from harness import POISON, Guarded, guarded

from ninfer_core.ops.contracts.rounds import ROUND_MISMATCH, LaneTables, RoundRing, RoundRows
from ninfer_core.ops.contracts.values import TokenCounts
from ninfer_core.ops.reference import OPS as REFERENCE

rounds = pytest.importorskip("ninfer_ops_triton.rounds")
DEPTH, LANES, CHANGES, PAGES, V = 3, 6, 150, 40, 50
GARBAGE = POISON * 0x01010101
LONGS = ("lanes", "slots", "targets")


class World:
    """Everything that the two ops touch, as they find it: garbage where they are to write."""

    def __init__(self, device: torch.device, rows: int) -> None:
        self.device, self.guards = device, []
        ingress = self.shared(DEPTH, 4 + 8 * LANES + 3 * CHANGES)
        self.ring = RoundRing(
            ingress, self.shared(DEPTH, 4 + 2 * LANES), self.place(1).zero_(), LANES, CHANGES
        )
        self.tables = LaneTables(self.place(LANES), self.place(LANES, PAGES))
        self.tables.tokens.copy_(torch.arange(LANES) + 10)
        columns = {
            field.name: self.place(
                *((3, rows) if field.name == "positions" else (rows,)),
                dtype=torch.int64 if field.name in LONGS else torch.int32,
            )
            for field in fields(RoundRows)
        }
        self.rows = RoundRows(**columns)
        prompt = torch.zeros(LANES, V, dtype=torch.bool, device=device)
        self.counts = TokenCounts(self.place(LANES, V).zero_(), prompt)

    def place(self, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        self.guards.append(Guarded(shape, dtype, self.device))
        return self.guards[-1].tensor

    def shared(self, *shape: int) -> torch.Tensor:
        """Pinned host memory where there is a GPU."""
        if self.device.type == "cuda":
            return torch.full(shape, GARBAGE, dtype=torch.int32).pin_memory()
        return self.place(*shape)

    def write(self, number: int, rows: list[list[int]], changes: list[list[int]]) -> None:
        self.wait()
        place = self.ring.ingress[number % DEPTH]
        place.fill_(GARBAGE)
        words = [number, len(rows), len(changes), 0, *(word for row in rows for word in row)]
        place[: len(words)] = torch.tensor(words, dtype=torch.int32)
        listed = torch.tensor(changes, dtype=torch.int32).flatten()
        first = 4 + 8 * LANES
        place[first : first + len(listed)] = listed

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def state(self) -> SimpleNamespace:
        """A copy on the host of all that may change, with every guard intact."""
        self.wait()
        for guard in self.guards:
            guard.check()
        kept = {field.name: getattr(self.rows, field.name) for field in fields(RoundRows)}
        kept |= {"tokens": self.tables.tokens, "block_tables": self.tables.block_tables}
        kept |= {"counts": self.counts.generated, "egress": self.ring.egress}
        kept |= {"ingress": self.ring.ingress, "counter": self.ring.counter}
        return SimpleNamespace(**{name: value.cpu().clone() for name, value in kept.items()})


def alike(one: World, other: World) -> None:
    mine, theirs = vars(one.state()), vars(other.state())
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name


def changes_of(generator: torch.Generator, count: int) -> list[list[int]]:
    bounds = torch.tensor([LANES, PAGES, 1000])
    return (torch.rand(count, 3, generator=generator) * bounds).int().tolist()


@pytest.mark.parametrize("count", [1, 3, 6])
def test_rounds_are_those_of_the_reference(device, count):
    """Around the ring twice; many changes, some of one place, so that the last must win."""
    here, there = World(device, count), World(torch.device("cpu"), count)
    generator = torch.Generator().manual_seed(count)
    for number in range(2 * DEPTH + 1):
        lanes = torch.randperm(LANES, generator=generator)[:count].tolist()
        rows = [
            [lane, -1 if lane % 2 else number, 7 * number, lane + 9, lane + 20, -lane, 0, 0]
            for lane in lanes
        ]
        changes = changes_of(generator, (0, 1, 64, 65, CHANGES, 3, 0)[number])
        tokens = torch.randint(V, (count,), generator=generator).int()
        broken = torch.rand(count, generator=generator) < 0.3
        for world, begin, publish in (
            (here, rounds.begin_round, rounds.publish_round),
            (there, REFERENCE.begin_round, REFERENCE.publish_round),
        ):
            world.write(number, rows, changes)
            begin(world.ring, world.tables, world.rows)
            publish(
                world.ring, world.tables, world.rows, world.counts,
                tokens.to(world.device), broken.to(world.device),
            )  # fmt: skip
        alike(here, there)
    state = here.state()
    assert state.egress[:, 0].tolist() == [7, 5, 6]
    assert int(state.counter) == 2 * DEPTH + 1


@pytest.mark.parametrize("word", [0, 1])
def test_a_place_of_another_round_or_size_is_a_mismatch(device, word):
    world = World(device, 2)
    rows = [[lane, -1, 0, 0, 0, 0, 0, 0] for lane in (4, 1)]
    for wrong in (False, True, False):
        world.write(0, rows, [])
        world.ring.ingress[0, word] += int(wrong)
        rounds.begin_round(world.ring, world.tables, world.rows)
        state = world.state()
        assert state.egress[0, 1] == (ROUND_MISMATCH if wrong else 0)
        assert state.egress[0, 0] == GARBAGE
        assert state.ids.tolist() == [14, 11]


def test_changes_beyond_the_place_are_not_read(device):
    """A count that no place could hold does not lead outside of the ring."""
    world = World(device, 1)
    world.write(0, [[0, 5, 0, 0, 0, 0, 0, 0]], [[1, 2, 3]] * CHANGES)
    world.ring.ingress[0, 2] = 1 << 20
    rounds.begin_round(world.ring, world.tables, world.rows)
    expected = torch.full((LANES, PAGES), GARBAGE, dtype=torch.int32)
    expected[1, 2] = 3
    assert torch.equal(world.state().block_tables, expected)


def test_what_is_not_the_rounds_stays(device):
    world = World(device, 2)
    world.rows.lanes.copy_(torch.tensor([5, 2]))
    world.ring.counter.fill_(4)
    before = world.state()
    tokens = guarded(torch.tensor([3, 49], dtype=torch.int32, device=device)).tensor
    broken = torch.tensor([True, False], device=device)
    rounds.publish_round(world.ring, world.tables, world.rows, world.counts, tokens, broken)
    after = world.state()
    before.tokens[5], before.tokens[2] = 3, 49
    before.counts[5, 3] = before.counts[2, 49] = 1
    before.egress[1, [0, 2]] = torch.tensor([5, 2], dtype=torch.int32)
    before.egress[1, 4:8] = torch.tensor([3, 1, 49, 0], dtype=torch.int32)
    before.counter[0] = 5
    for name, value in vars(before).items():
        assert torch.equal(value, getattr(after, name)), name
