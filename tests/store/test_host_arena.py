"""The byte arena against a map that says which extent owns each aligned block."""

from __future__ import annotations

import re

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninfer_core.store import Extent, HostArena, StaleHandleError, TransitionError


def test_sizes_are_rounded_to_the_alignment():
    arena = HostArena("host", 1000, alignment=256)
    extent = arena.allocate(257)
    assert (arena.capacity, extent.size, arena.free_bytes) == (768, 512, 256)


def test_free_bytes_prove_nothing():
    arena = HostArena("host", 4 * 256)
    blocks = [arena.allocate(256) for _ in range(4)]
    arena.free(blocks[0])
    arena.free(blocks[2])
    assert (arena.free_bytes, arena.largest_free) == (512, 256)
    assert arena.allocate(512) is None
    arena.free(blocks[1])
    assert arena.allocate(768) == Extent(0, 768, 5)


def test_the_tightest_block_is_taken_and_of_those_the_lowest():
    arena = HostArena("host", 10 * 256)
    blocks = [arena.allocate(size * 256) for size in (3, 1, 2, 1, 2, 1)]
    for index in (0, 2, 4):
        arena.free(blocks[index])
    assert arena.allocate(512).offset == 4 * 256
    assert arena.allocate(512).offset == 7 * 256
    assert arena.allocate(512).offset == 0


def test_a_pinned_extent_is_not_freed_and_pins_count():
    arena = HostArena("host", 1024)
    extent = arena.allocate(100)
    arena.pin(extent)
    arena.pin(extent)
    arena.unpin(extent)
    with pytest.raises(TransitionError, match="pinned"):
        arena.free(extent)
    arena.unpin(extent)
    with pytest.raises(TransitionError, match="not pinned"):
        arena.unpin(extent)
    arena.free(extent)
    assert arena.free_bytes == 1024


def test_an_extent_of_the_same_place_but_an_older_generation_is_stale():
    arena = HostArena("host", 256)
    old = arena.allocate(256)
    arena.free(old)
    new = arena.allocate(256)
    assert new.offset == old.offset
    for use in (arena.free, arena.pin, arena.unpin):
        with pytest.raises(StaleHandleError):
            use(old)
    assert arena.alive(new)


@pytest.mark.parametrize("size", [0, -1])
def test_an_extent_has_at_least_one_byte(size):
    with pytest.raises(ValueError, match="at least 1"):
        HostArena("host", 1024).allocate(size)


def test_an_arena_of_no_bytes_refuses_everything():
    arena = HostArena("host", 0)
    arena.check()
    assert arena.allocate(1) is None


def test_many_are_freed_together_or_not_at_all():
    arena = HostArena("host", 8 * 256)
    extents = arena.allocate_many(256, 6)
    arena.pin(extents[4])
    for wrong in (extents, [extents[0], extents[1], extents[0]]):
        with pytest.raises((TransitionError, StaleHandleError)):
            arena.free_many(wrong)
        assert arena.live_extents() == set(extents)
        arena.check()
    arena.free_many([extents[2], extents[0], extents[1]])
    assert (arena.free_bytes, arena.largest_free) == (5 * 256, 3 * 256)
    arena.check()


def best_fit(blocks: list[object], count: int) -> int | None:
    """Where the shortest run of None begins that holds ``count`` of them, the first of such."""
    marks = "".join("x" if owner else "." for owner in blocks)
    runs = [match.span() for match in re.finditer(r"\.+", marks)]
    fitting = [(end - start, start) for start, end in runs if end - start >= count]
    return min(fitting)[1] if fitting else None


def test_random_histories_keep_the_books(explore):
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.arena = HostArena("host", 24 * 16, alignment=16)
            self.map: list[Extent | None] = [None] * 24
            self.held: list[Extent] = []

        def runs(self) -> list[int]:
            marks = "".join("x" if owner else "." for owner in self.map)
            return [len(run) for run in marks.split("x") if run]

        @rule(size=st.integers(1, 8 * 16))
        def allocate(self, size: int) -> None:
            blocks = -(-size // 16)
            extent = self.arena.allocate(size)
            assert (extent is not None) == any(run >= blocks for run in self.runs())
            if extent is not None:
                start = extent.offset // 16
                assert self.map[start : start + blocks] == [None] * blocks
                self.map[start : start + blocks] = [extent] * blocks
                self.held.append(extent)

        @rule(size=st.integers(1, 4 * 16), count=st.integers(0, 6))
        def allocate_many(self, size: int, count: int) -> None:
            """As one after another: the shortest run that fits, of those the first, its start."""
            blocks, expected, taken = -(-size // 16), list(self.map), []
            for _ in range(count):
                start = best_fit(expected, blocks)
                if start is None:
                    break
                taken.append(16 * start)
                expected[start : start + blocks] = [True] * blocks
            assert self.arena.fits([size] * count) == (len(taken) == count)
            extents = self.arena.allocate_many(size, count)
            if len(taken) < count:
                assert extents is None
                return
            assert [extent.offset for extent in extents] == taken
            assert len({extent.generation for extent in extents}) == count
            for extent in extents:
                self.map[extent.offset // 16 : extent.offset // 16 + blocks] = [extent] * blocks
            self.held += extents

        @rule(sizes=st.lists(st.integers(1, 6 * 16), max_size=5))
        def what_fits_can_be_allocated(self, sizes: list[int]) -> None:
            fits = self.arena.fits(sizes)
            extents = [self.arena.allocate(size) for size in sizes]
            assert fits == (None not in extents)
            self.arena.free_many([extent for extent in extents if extent is not None])

        @rule(picks=st.sets(st.integers(0, 99), max_size=6))
        def free_many(self, picks: set[int]) -> None:
            going = [self.held[place] for place in sorted(picks) if place < len(self.held)]
            self.held = [extent for extent in self.held if extent not in going]
            self.arena.free_many(going[::-1])
            self.map = [None if owner in going else owner for owner in self.map]

        @precondition(lambda self: self.held)
        @rule(pick=st.integers(0, 99))
        def free(self, pick: int) -> None:
            extent = self.held.pop(pick % len(self.held))
            self.arena.free(extent)
            self.map = [None if owner == extent else owner for owner in self.map]
            with pytest.raises(StaleHandleError):
                self.arena.free(extent)

        @invariant()
        def books(self) -> None:
            self.arena.check()
            assert self.arena.free_bytes == 16 * self.map.count(None)
            assert self.arena.largest_free == 16 * max(self.runs(), default=0)
            assert self.arena.live_extents() == set(self.held)

    explore(Machine)
