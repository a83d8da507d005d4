"""How address spaces share pages, by hand-made numbers."""

from __future__ import annotations

import pytest

from ninfer_core.store import (
    AddressSpaces,
    BlockTables,
    CopyPage,
    Demand,
    Footprint,
    Ledger,
    LogicalPages,
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


def test_a_fork_at_1000_shares_15_pages_and_copies_40_columns(spaces, filled, grant):
    parent = filled(1000)
    assert spaces.fork_pages(1000) == 1
    child, copies = spaces.fork(parent, 1000, "b", grant)
    assert copies == (CopyPage("main", source=15, target=16, columns=40),)
    assert spaces.page_ids(child) == (*range(15), 16)
    assert spaces.page_ids(parent) == tuple(range(16))
    assert spaces.pool.allocated == 17
    refs = [page.refs for page in spaces.directory(parent)]
    assert refs == [2] * 15 + [1]
    spaces.check()


def test_a_fork_at_a_page_edge_copies_nothing(spaces, filled, grant):
    parent = filled(1000)
    assert spaces.fork_pages(960) == 0
    child, copies = spaces.fork(parent, 960, "b", grant)
    assert (copies, spaces.page_ids(child)) == ((), tuple(range(15)))
    assert spaces.view(child) == SpaceView("b", True, 960, 0, 960, None)


def test_parent_and_child_append_to_pages_of_their_own(spaces, filled, grant):
    parent = filled(100)
    child, _ = spaces.fork(parent, 100, "b", grant)
    for space in (parent, child):
        spaces.ensure_mapped(space, 200, grant)
        spaces.commit(space, 200)
    assert spaces.page_ids(parent) == (0, 1, 3, 4)
    assert spaces.page_ids(child) == (0, 2, 5, 6)
    spaces.check()


def test_truncation_into_a_page_that_a_fork_shares_is_refused(spaces, filled, grant):
    parent = filled(200)
    spaces.fork(parent, 130, "b", grant)
    with pytest.raises(ProtectedRangeError, match="shared past column 36"):
        spaces.truncate(parent, 100)
    assert spaces.view(parent).frontier == 200
    spaces.truncate(parent, 128)
    spaces.check()


def test_moving_takes_the_tail_over_where_nobody_needs_more(spaces, filled, grant):
    space = filled(1000)
    spaces.freeze(space)
    assert spaces.activation_pages(space, 900) == 0
    assert spaces.activate(space, 900, grant) == ()
    assert (spaces.view(space).frontier, spaces.pool.allocated) == (900, 15)
    spaces.commit(space, 950)
    spaces.check()


def test_moving_copies_a_tail_that_a_public_record_needs_further(spaces, filled, grant):
    space = filled(1000)
    spaces.freeze(space)
    public = spaces.share(space, 1000, "public")
    assert spaces.activation_pages(space, 970) == 1
    copies = spaces.activate(space, 970, grant)
    assert copies == (CopyPage("main", source=15, target=16, columns=10),)
    assert spaces.page_ids(public) == tuple(range(16))
    assert spaces.page_ids(space) == (*range(15), 16)
    spaces.check()


def test_moving_at_the_shared_frontier_writes_beside_the_reader(spaces, filled, grant):
    space = filled(1000)
    spaces.freeze(space)
    spaces.share(space, 1000, "public")
    assert spaces.activate(space, 1000, grant) == ()
    spaces.commit(space, 1010)
    assert spaces.pool.allocated == 16
    spaces.check()


def test_a_second_writer_of_the_same_tail_gets_a_copy(spaces, filled, grant):
    space = filled(1000)
    public = spaces.share(space, 1000, "public")
    assert spaces.activation_pages(public, 1000) == 1, "the live space writes there"
    (copy,) = spaces.activate(public, 1000, grant)
    assert (copy.source, copy.target, copy.columns) == (15, 16, 40)
    spaces.check()


def test_a_move_stays_above_the_points_and_below_the_frontier(spaces, filled, grant):
    space = filled(500)
    spaces.protect(space, 300)
    with pytest.raises(TransitionError, match="a space that is active"):
        spaces.activate(space, 400, grant)
    spaces.freeze(space)
    with pytest.raises(TransitionError, match="protected up to 300"):
        spaces.activate(space, 299, grant)
    with pytest.raises(TransitionError, match="no content at 501"):
        spaces.activate(space, 501, grant)
    assert spaces.activate(space, 300, grant) == ()
    with pytest.raises(ProtectedRangeError):
        spaces.truncate(space, 299)


def test_a_lease_outlives_its_space_and_ends_once(spaces, filled):
    space = filled(100)
    lease = spaces.lease(space, 100)
    assert [pin.columns for pin in lease.pins] == [64, 36]
    spaces.release(space)
    assert spaces.pool.allocated == 2
    lease.release()
    assert spaces.pool.allocated == 0
    with pytest.raises(StaleHandleError, match="released twice"):
        lease.release()


def test_the_footprint_counts_what_would_really_be_freed(spaces, filled, grant):
    space = filled(1000)
    assert spaces.footprint(space) == Footprint(16, 0)
    assert spaces.footprint(space, keep=129) == Footprint(13, 0)
    child, _ = spaces.fork(space, 640, "b", grant)
    assert spaces.footprint(space) == Footprint(6, 0)
    assert spaces.footprint(child) == Footprint(0, 0)
    lease = spaces.lease(space, 1000)
    assert spaces.footprint(space) == Footprint(0, 0)
    lease.release()
    before = spaces.pool.allocated
    spaces.release(space)
    assert spaces.pool.allocated == before - 6
