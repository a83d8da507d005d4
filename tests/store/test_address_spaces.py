"""Address spaces of one pool, by hand-made numbers."""

from __future__ import annotations

import pytest

from ninfer_core.store import (
    AddressSpaces,
    BlockTables,
    Demand,
    Ledger,
    LogicalPages,
    PermitViolationError,
    ProtectedRangeError,
    SpaceView,
    StaleHandleError,
    TransitionError,
)


@pytest.fixture
def spaces(new_pool):
    return AddressSpaces(LogicalPages(new_pool(40)), BlockTables(2, 20))


@pytest.fixture
def grant(spaces):
    return Ledger([spaces.pool]).reserve(Demand({"main": spaces.pool.capacity}))


@pytest.fixture
def filled(spaces, grant):
    """``filled(tokens, owner="a")``: an active space committed up to ``tokens``."""

    def make(tokens: int, owner: str = "a"):
        space = spaces.create(owner)
        spaces.ensure_mapped(space, tokens, grant)
        spaces.commit(space, tokens)
        return space

    return make


def test_mapping_is_a_lower_bound_and_takes_only_what_is_missing(spaces, grant):
    space = spaces.create("a")
    assert (spaces.growth(space, 65), spaces.ensure_mapped(space, 65, grant)) == (2, 2)
    assert (spaces.growth(space, 128), spaces.ensure_mapped(space, 128, grant)) == (0, 0)
    assert spaces.ensure_mapped(space, 1, grant) == 0
    assert spaces.growth(space, 129) == 1
    assert spaces.view(space).mapped == 128


def test_more_than_the_reservation_is_a_permit_violation_and_maps_nothing(spaces):
    grant = Ledger([spaces.pool]).reserve(Demand({"main": 2}))
    space = spaces.create("a")
    with pytest.raises(PermitViolationError, match=r"129 tokens need 3 pages more; .* holds 2"):
        spaces.ensure_mapped(space, 129, grant)
    assert (spaces.view(space).mapped, grant.remaining("main")) == (0, 2)


@pytest.mark.parametrize("frontier", [99, 129])
def test_a_commit_moves_forward_within_the_mapping(spaces, filled, frontier):
    space = filled(100)
    with pytest.raises(TransitionError, match="committed 100, mapped 128"):
        spaces.commit(space, frontier)


def test_trimming_returns_the_provisional_suffix_only(spaces, filled, grant):
    space = filled(70)
    spaces.ensure_mapped(space, 300, grant)
    spaces.trim(space, 200)
    assert spaces.view(space).mapped == 256
    spaces.trim(space)
    assert (spaces.view(space).mapped, spaces.pool.allocated) == (128, 2)


def test_truncation_stops_at_the_furthest_point(spaces, filled):
    space = filled(500)
    near, far = spaces.protect(space, 200), spaces.protect(space, 300)
    assert spaces.view(space).protected == 300
    with pytest.raises(ProtectedRangeError, match="truncation to 299; 300 are protected"):
        spaces.truncate(space, 299)
    spaces.unprotect(far)
    spaces.truncate(space, 200)
    assert (spaces.view(space).frontier, spaces.pool.allocated) == (200, 4)
    with pytest.raises(StaleHandleError):
        spaces.unprotect(far)
    spaces.unprotect(near)
    spaces.truncate(space, 0)
    assert spaces.pool.allocated == 0


def test_truncation_takes_a_full_page_of_its_own_back_to_write(spaces, filled, grant):
    space = filled(200)
    spaces.truncate(space, 100)
    spaces.ensure_mapped(space, 150, grant)
    spaces.commit(space, 150)
    assert spaces.page_ids(space) == (0, 1, 2)
    spaces.check()


@pytest.mark.parametrize("tokens", [-1, 101])
def test_truncation_goes_back_only(spaces, filled, tokens):
    with pytest.raises(TransitionError, match="the frontier is 100"):
        spaces.truncate(filled(100), tokens)


def test_a_point_is_on_committed_tokens(spaces, filled):
    with pytest.raises(TransitionError, match="point at 101; the frontier is 100"):
        spaces.protect(filled(100), 101)


def test_restore_points_of_one_space_cost_no_page(spaces, filled):
    space = filled(1000)
    for frontier in (100, 640, 1000):
        spaces.protect(space, frontier)
    assert spaces.pool.allocated == 16


def test_a_frozen_space_is_immutable(spaces, filled, grant):
    space = filled(100)
    spaces.ensure_mapped(space, 300, grant)
    spaces.bind_row(space, 0)
    spaces.freeze(space)
    assert spaces.view(space) == SpaceView("a", False, 100, 0, 128, None)
    for use in (
        lambda: spaces.ensure_mapped(space, 129, grant),
        lambda: spaces.commit(space, 101),
        lambda: spaces.trim(space),
        lambda: spaces.bind_row(space, 0),
        lambda: spaces.freeze(space),
    ):
        with pytest.raises(TransitionError, match="immutable"):
            use()
    spaces.check()


def test_release_waits_for_the_points(spaces, filled):
    space = filled(100)
    point = spaces.protect(space, 64)
    with pytest.raises(ProtectedRangeError, match="points at 64"):
        spaces.release(space)
    spaces.unprotect(point)
    spaces.release(space)
    assert (len(spaces), spaces.pool.allocated) == (0, 0)
    for use in (spaces.release, spaces.view, spaces.freeze, spaces.unbind_row):
        with pytest.raises(StaleHandleError):
            use(space)


def test_a_row_follows_its_directory_by_deltas(spaces, filled, grant):
    space = filled(100)
    spaces.bind_row(space, 1)
    assert [tuple(delta) for delta in spaces.tables.drain()] == [(1, 0, 0), (1, 1, 1)]
    spaces.ensure_mapped(space, 129, grant)
    assert [tuple(delta) for delta in spaces.tables.drain()] == [(1, 2, 2)]
    spaces.commit(space, 120)
    assert spaces.tables.pending == 0, "a round within a page sends nothing"
    spaces.trim(space)
    assert spaces.tables.row(1) == (0, 1)
    spaces.unbind_row(space)
    spaces.bind_row(space, 0)
    assert spaces.tables.row(0) == (0, 1)


def test_a_space_has_one_row_and_its_pages_fit(spaces, filled, grant):
    space, other = filled(100), filled(10, "b")
    spaces.bind_row(space, 0)
    for use in (lambda: spaces.bind_row(space, 1), lambda: spaces.bind_row(other, 0)):
        with pytest.raises(TransitionError, match="already bound"):
            use()
    with pytest.raises(TransitionError, match="21 pages do not fit a table row of 20"):
        spaces.ensure_mapped(space, 20 * 64 + 1, grant)
    assert spaces.view(space).mapped == 128
    spaces.check()


def test_a_space_of_another_pool_is_stale(spaces, new_pool, filled):
    other = AddressSpaces(LogicalPages(new_pool(4)))
    filled(10)
    with pytest.raises(StaleHandleError):
        spaces.view(other.create("a"))
