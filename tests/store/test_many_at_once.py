"""Pages that move together: the same as one after another, and nothing where one is refused."""

from __future__ import annotations

import random

import pytest

from ninfer_core.store import (
    BlockTables,
    HostArena,
    LogicalPages,
    PermitViolationError,
    Replicas,
    StaleHandleError,
    TableDelta,
    TransitionError,
    Unit,
)
from ninfer_core.store.page_records import columns_of, off_device, off_host

WRITER, COUNT, COLUMNS = 1, 6, 5 * 64 + 20


@pytest.fixture
def pool(new_pool):
    return new_pool(20)


@pytest.fixture
def arena():
    return HostArena("host_bytes", 1 << 16)


@pytest.fixture
def pages(pool, arena):
    return LogicalPages(pool, arena)


@pytest.fixture
def replicas(pages, arena):
    return Replicas(pages, arena)


@pytest.fixture
def held(pages, pool, grant_of):
    """Five full pages and one of 20 columns, all held and written by nobody."""
    grant = grant_of(pool, COUNT)
    made = [pages.create(grant.draw("main"), WRITER, columns) for columns in columns_of(COLUMNS)]
    pages.disown(made[-1], WRITER)
    return made


def test_columns_of_a_directory() -> None:
    assert columns_of(0) == []
    assert columns_of(64) == [64]
    assert columns_of(130) == [64, 64, 2]


def test_units_are_drawn_and_released_together_as_one_by_one(new_pool) -> None:
    r = random.Random(0)
    one, many = new_pool(30), new_pool(30)
    for _ in range(60):
        count = r.randrange(one.available + 1)
        one.reserve(count)
        many.reserve(count)
        assert many.draw_many(count) == [one.draw() for _ in range(count)]
        live = sorted(one.live_units())
        going = r.sample(live, r.randrange(len(live) + 1))
        many.release_many(going)
        for unit in going:
            one.release(unit)
        assert many.live_units() == one.live_units()
        assert (many.allocated, many.reserved) == (one.allocated, one.reserved)
        many.check()


def test_none_is_drawn_or_released_where_one_is_refused(new_pool) -> None:
    pool = new_pool(4)
    pool.reserve(3)
    with pytest.raises(PermitViolationError, match="4 units drawn, 3 reserved"):
        pool.draw_many(4)
    units = pool.draw_many(2)
    for wrong in ([*units, units[0]], [units[0], Unit(3, 1)], [Unit(units[0].index, 9)]):
        with pytest.raises(StaleHandleError):
            pool.release_many(wrong)
        assert pool.live_units() == set(units)
    pool.check()


def test_a_reservation_gives_many_or_none(pool, grant_of) -> None:
    grant = grant_of(pool, 3)
    with pytest.raises(PermitViolationError, match="4 of pool 'main' were drawn; 3 are left"):
        grant.draw_many("main", 4)
    assert [unit.index for unit in grant.draw_many("main", 2)] == [0, 1]
    assert grant.remaining("main") == 1
    with pytest.raises(PermitViolationError, match="no host extent is left"):
        grant.draw_extents(1)
    assert grant.draw_extents(0) == []


def test_pins_hold_the_columns_of_the_directory(pages, held) -> None:
    pins = pages.pin_many(held, COLUMNS)
    assert [(pin.page, pin.columns) for pin in pins] == [
        *((page, 64) for page in held[:5]),
        (held[5], 20),
    ]
    assert [page.pins for page in held] == [[64]] * 5 + [[20]]
    pages.unpin_many(pins)
    assert [page.pins for page in held] == [[]] * 6
    with pytest.raises(StaleHandleError, match="no pin of 64"):
        pages.unpin_many(pins)


def test_no_page_is_pinned_where_one_is_refused(pages, held) -> None:
    with pytest.raises(TransitionError, match="pin on 21 columns of a page with 20"):
        pages.pin_many(held, COLUMNS + 1)
    assert [page.pins for page in held] == [[]] * 6
    pages.unhold(held[5], 20)
    with pytest.raises(StaleHandleError, match="was freed"):
        pages.pin_many(held, COLUMNS)
    assert [page.pins for page in held] == [[]] * 6


def test_the_last_pin_of_many_frees_what_nobody_holds(pages, held, pool) -> None:
    pins = pages.pin_many(held, COLUMNS)
    for page in held[2:4]:
        pages.unhold(page, 64)
    assert pool.allocated == 6
    pages.unpin_many(pins)
    assert [page.alive for page in held] == [True, True, False, False, True, True]
    assert pool.allocated == 4
    pages.check()


def test_pages_go_to_the_host_and_come_back_together(pages, held, replicas, arena, pool) -> None:
    pins = pages.pin_many(held, COLUMNS)
    assert off_host(held, COLUMNS) == held
    extents = arena.allocate_many(512, COUNT)
    replicas.publish_hosts(pins, extents)
    assert [page.host.location for page in held] == extents
    assert off_host(held, COLUMNS) == []
    assert replicas.drop_idle(held) == 0, "pinned"
    pages.unpin_many(pins)
    held[1].active += 1
    assert replicas.drop_idle(held) == 5
    assert off_device(held, COLUMNS) == [page for page in held if page is not held[1]]
    assert (pool.allocated, held[5].committed) == (1, 20)
    held[1].active -= 1
    pages.check()
    replicas.drop_spare(held)
    assert [page.host is None for page in held] == [False, True, False, False, False, False]
    assert (arena.used_bytes, replicas.drop_idle(held)) == (5 * 512, 0)
    back = [page for page in held if page.device is None]
    pins = [pin for pin in pages.pin_many(held, COLUMNS) if pin.page.device is None]
    pool.reserve(5)
    units = pool.draw_many(5)
    pages.incoming.update(units)
    replicas.publish_devices(pins, units)
    assert [page.device.location for page in back] == units
    assert not pages.incoming
    replicas.drop_spare(held)
    assert arena.used_bytes == 0
    pages.check()


@pytest.mark.parametrize("wrong", ["stale", "unpinned"])
def test_what_may_not_be_published_is_refused_among_many(
    pages, held, replicas, arena, wrong
) -> None:
    pins, extents = pages.pin_many(held, COLUMNS), arena.allocate_many(512, COUNT)
    if wrong == "stale":
        arena.free(extents[3])
    else:
        pages.unpin(pins[3])
    with pytest.raises(StaleHandleError):
        replicas.publish_hosts(pins, extents)
    assert held[3].host is None
    with pytest.raises(TransitionError, match="already on the device"):
        replicas.publish_devices(pins[:1], [Unit(7, 1)])


def test_a_host_copy_of_fewer_columns_is_replaced(pages, pool, grant_of, replicas, arena) -> None:
    page = pages.create(grant_of(pool, 1).draw("main"), WRITER, 20)
    for columns in (20, 33):
        pages.commit(page, WRITER, columns)
        assert off_host([page], columns) == [page]
        pins = pages.pin_many([page], columns)
        replicas.publish_hosts(pins, arena.allocate_many(512, 1))
        pages.unpin_many(pins)
        assert off_host([page], columns) == []
    assert arena.used_bytes == 512


def test_a_bound_row_and_whole_rows_that_are_pending() -> None:
    tables = BlockTables(3, 4)
    tables.bind(2, [5, 6, 7])
    tables.bind(0, [1])
    tables.append(0, 2)
    assert (tables.pending, tables.pending_rows()) == (5, {0, 2})
    assert tables.take_row(2) == (5, 6, 7)
    assert tables.pending_rows() == {0}
    assert tables.drain() == (TableDelta(0, 0, 1), TableDelta(0, 1, 2))
    tables.check()
