"""The store as a whole: occupancy, histories over several pools, the host tier, ``check``."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.store import (
    ContextStore,
    CopyPage,
    Demand,
    Occupancy,
    Plane,
    ProtectedRangeError,
    StoreInvariantError,
    StoreLayout,
    TransitionError,
)


@pytest.fixture
def running(store):
    """A history at 100 tokens (drafter 99) in row 0."""
    histories = store.histories
    history = histories.create("a")
    histories.bind_row(history, 0)
    at = {"main": 100, "draft": 99}
    grant = store.ledger.reserve(histories.growth(history, at))
    histories.ensure_mapped(history, at, grant)
    histories.commit(history, at)
    histories.settle(history, grant)
    return history


def test_occupancy_lists_slots_pages_and_host_bytes(store):
    grant = store.ledger.reserve(Demand({"main": 3, "state_slots": 1}, (512,)))
    grant.draw("main")
    table = store.occupancy()
    assert list(table) == ["state_slots", "main", "draft", "host_bytes"]
    assert table["main"] == Occupancy(14, 1, 2, 11)
    assert table["host_bytes"] == Occupancy(4096, 0, 512, 3584)
    grant.draw_extent()
    assert store.occupancy()["host_bytes"] == Occupancy(4096, 512, 0, 3584)
    assert not store.idle


def test_block_tables_may_lie_where_kernels_read_them():
    layout = StoreLayout({"main": (Plane("kv", 0, 4, 512),)}, {}, table_rows=2, table_columns=3)
    cells = np.zeros((2, 3), np.int32)
    store = ContextStore(layout, {"main": cells})
    grant = store.ledger.reserve(Demand({"main": 2}))
    space = store.spaces["main"].create("a")
    store.spaces["main"].ensure_mapped(space, 128, grant)
    store.spaces["main"].bind_row(space, 1)
    assert cells.tolist() == [[0, 0, 0], [0, 1, 0]]


def test_a_decode_round_within_a_page_reserves_nothing(store, running):
    at = {"main": 101, "draft": 100}
    assert store.histories.growth(running, at) == Demand()
    assert store.histories.growth(running, {"main": 129, "draft": 128}) == Demand({"main": 1})


def test_settlement_keeps_the_pages_of_a_round_launched_ahead(store, running):
    histories, peak = store.histories, {"main": 193, "draft": 192}
    grant = store.ledger.reserve(histories.growth(running, peak))
    histories.ensure_mapped(running, {"main": 129, "draft": 128}, grant)
    assert histories.settle(running, grant, {"main": 129}) == Demand({"main": 1, "draft": 1})
    assert store.spaces["main"].view(running.spaces["main"]).mapped == 192
    assert store.spaces["draft"].view(running.spaces["draft"]).mapped == 128


def test_a_fork_copies_the_tail_of_each_pool_that_has_one(store, running):
    at = {"main": 65, "draft": 64}
    demand = store.histories.fork_demand(at)
    assert demand == Demand({"main": 1})
    grant = store.ledger.reserve(demand)
    child, copies = store.histories.fork(running, at, "b", grant)
    assert copies == (CopyPage("main", 1, 2, 1),)
    assert grant.settle().empty
    store.check()
    store.histories.release(child)
    store.histories.unbind_row(running)
    store.histories.release(running)
    assert store.idle


def test_a_point_protects_every_pool(store, running):
    point = store.histories.protect(running, {"main": 80, "draft": 79})
    for pool, tokens in {"main": 79, "draft": 78}.items():
        with pytest.raises(ProtectedRangeError):
            store.histories.truncate(running, {pool: tokens})
    store.histories.unprotect(point)
    store.histories.truncate(running, {"main": 79, "draft": 78})


def test_a_demoted_record_runs_only_after_its_restore(store, running):
    histories = store.histories
    histories.freeze(running)
    at = {"main": 100, "draft": 99}
    lease = histories.lease(running, at)
    for name, spaces in lease.spaces.items():
        for pin in spaces.pins:
            grant = store.ledger.reserve(Demand(host_extents=(512,)))
            store.replicas[name].publish_host(pin, grant.draw_extent())
            grant.settle()
    lease.release()
    for page in store.spaces["main"].directory(running.spaces["main"]):
        store.replicas["main"].drop_device(page)
    store.check()
    assert store.occupancy()["main"].allocated == 0
    assert store.spaces["main"].footprint(running.spaces["main"]) == (0, 1024)
    grant = store.ledger.reserve(Demand({"main": 2}))
    with pytest.raises(TransitionError, match="page 0 is not on the device"):
        histories.activate(running, at, grant)
    store.check()


def break_reserved(store):
    store.spaces["main"].pool.reserved += 1


def break_allocated(store):
    store.spaces["main"].pool.allocated -= 1


def break_reference(store):
    store.spaces["main"].pages.live_pages()[0].holds.append(64)


def break_writer(store):
    store.spaces["main"].pages.live_pages()[1].writer = None


def break_row(store):
    store.spaces["main"].tables.cut(0, 1)


def break_unit(store):
    store.spaces["main"].pool.release(store.spaces["main"].pages.live_pages()[0].device.location)


def break_epoch(store):
    store.spaces["main"].pages.live_pages()[0].epoch += 1


def break_extent(store):
    extent = store.arena.allocate(512)
    page = store.spaces["main"].pages.live_pages()[0]
    pin = store.spaces["main"].pages.pin(page, 64)
    store.replicas["main"].publish_host(pin, extent)
    store.spaces["main"].pages.unpin(pin)
    store.arena.free(extent)


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        (break_reserved, "main: 1 reserved, open reservations hold 0"),
        (break_allocated, "main: allocated counts the live units"),
        (break_reference, "main page 1: holds"),
        (break_writer, "main: page 2"),
        (break_row, "row 0 mirrors its directory"),
        (break_unit, "each allocated unit carries a live page"),
        (break_epoch, "main: page 1: a valid replica covers"),
        (break_extent, "of a page is allocated"),
    ],
)
def test_check_names_the_broken_invariant(store, running, damage, invariant):
    store.check()
    damage(store)
    with pytest.raises(StoreInvariantError, match=invariant) as caught:
        store.check()
    assert isinstance(caught.value, EngineFailure)
