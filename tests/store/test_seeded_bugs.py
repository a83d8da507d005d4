"""Bugs put into the store on purpose: the random walk must notice each of them."""

from __future__ import annotations

import pytest

from ninfer_core.store import (
    AddressSpaces,
    BlockTables,
    ClearState,
    ContextStore,
    Demand,
    Extent,
    HostArena,
    LogicalPages,
    Reservation,
    StateSlots,
    UnitPool,
)
from ninfer_core.store.logical_pages import LogicalPage
from ninfer_core.store.page_records import columns_of
from ninfer_core.store.reservations import Ledger
from ninfer_core.store.space import Space
from ninfer_core.store.units import Unit


def without_checks(patch) -> None:
    """Leave the shadow's content as the only witness."""
    for part in (UnitPool, LogicalPages, AddressSpaces, StateSlots, Ledger, BlockTables):
        patch.setattr(part, "check", lambda self: None)
    patch.setattr(ContextStore, "idle", True)


def fork_without_copy(patch) -> None:
    fork = AddressSpaces.fork
    patch.setattr(AddressSpaces, "fork", lambda *a, **k: (fork(*a, **k)[0], ()))


def activate_without_copy(patch) -> None:
    activate = AddressSpaces.activate

    def mutant(*args):
        activate(*args)
        return ()

    patch.setattr(AddressSpaces, "activate", mutant)


def copy_one_column_short(patch) -> None:
    copy = AddressSpaces._copy

    def mutant(self, source, target):
        right = copy(self, source, target)
        return type(right)(right.pool, right.source, right.target, right.columns - 1)

    patch.setattr(AddressSpaces, "_copy", mutant)


def sharing_takes_no_reference(patch) -> None:
    patch.setattr(LogicalPages, "hold", lambda self, page, columns: None)
    patch.setattr(LogicalPages, "unhold", lenient_unhold)


def lenient_unhold(self, page: LogicalPage, columns: int) -> None:
    if columns in page.holds:
        page.holds.remove(columns)
        if page.alive:
            self._reap(page)


def pins_are_ignored(patch) -> None:
    def pin_many(self, pages, tokens):
        return [
            FakePin(page, columns) for page, columns in zip(pages, columns_of(tokens), strict=True)
        ]

    patch.setattr(LogicalPages, "pin_many", pin_many)
    patch.setattr(LogicalPages, "unpin_many", lambda self, pins: None)


class FakePin:
    def __init__(self, page: LogicalPage, columns: int) -> None:
        self.page, self.columns = page, columns


def any_holder_may_write(patch) -> None:
    patch.setattr(LogicalPages, "may_own", lambda self, page, held, columns: True)


def truncation_ignores_the_protected_columns(patch) -> None:
    patch.setattr(LogicalPage, "protected", property(lambda self: 0))


def truncation_keeps_the_host_copy(patch) -> None:
    patch.setattr(
        "ninfer_core.store.logical_pages.Replica.clip",
        lambda self, epoch, columns: setattr(self, "epoch", epoch),
    )


def points_do_not_protect(patch) -> None:
    patch.setattr(Space, "protected", property(lambda self: 0))


def units_are_released_twice(patch) -> None:
    def release(self, unit: Unit) -> None:
        original(self, unit)
        self.allocated -= 1
        self._free.append(unit.index)

    original = UnitPool.release
    patch.setattr(UnitPool, "release", release)


def release_is_forgotten(patch) -> None:
    patch.setattr(LogicalPages, "_reap", lambda self, page: None)


def settlement_loses_the_reservation(patch) -> None:
    patch.setattr(UnitPool, "unreserve", lambda self, count: None)


def settlement_is_skipped(patch) -> None:
    patch.setattr(Reservation, "settle", lambda self: Demand())


def a_refusal_keeps_what_it_had(patch) -> None:
    def short_units(self, units):
        short = original(self, units)
        for name, count in units.items() if short else ():
            self.pool(name).reserve(count)
        return short

    original = Ledger._short_units
    patch.setattr(Ledger, "_short_units", short_units)


def the_last_unit_is_given_twice(patch) -> None:
    def draw(self, near: int = 0) -> Unit:
        unit = original(self, near)
        if self.allocated == self.capacity:
            index = unit.index and unit.index - 1
            return Unit(index, self._generations[index])
        return unit

    original = UnitPool.draw
    patch.setattr(UnitPool, "draw", draw)


def trimming_cuts_too_far(patch) -> None:
    original = AddressSpaces.trim
    patch.setattr(AddressSpaces, "trim", lambda self, h, tokens=0: cut_one_more(original, self, h))


def cut_one_more(trim, spaces, handle) -> None:
    trim(spaces, handle)
    space = spaces._spaces.get(handle)
    if space.frontier % 64 == 1:
        space.drop_from(len(space.pages) - 1)
        spaces._cut(space)


def a_new_row_entry_is_not_logged(patch) -> None:
    def append(self, row: int, page: int) -> None:
        original(self, row, page)
        if self.length(row) > 1:
            self._log.pop((row, self.length(row) - 1))

    original = BlockTables.append
    patch.setattr(BlockTables, "append", append)


def binding_sends_nothing(patch) -> None:
    def bind(self, row: int, pages) -> None:
        original(self, row, pages)
        self.take_row(row)

    original = BlockTables.bind
    patch.setattr(BlockTables, "bind", bind)


def a_state_moves_although_shared(patch) -> None:
    def move(self, source, owner):
        image = self._images[source]
        image.published, image.owner = False, owner
        return source

    patch.setattr(StateSlots, "may_move", lambda self, source: True)
    patch.setattr(StateSlots, "move", move)


def a_state_is_not_cleared(patch) -> None:
    def create(self, owner, grant):
        slot, _ = original(self, owner, grant)
        return slot, ClearState(slot.pool, self.scratch)

    original = StateSlots.create
    patch.setattr(StateSlots, "create", create)


def a_published_state_is_freed_with_its_first_holder(patch) -> None:
    def release(self, slot) -> None:
        image = self._images[slot]
        image.refs = 0
        self._reap(slot, image)

    patch.setattr(StateSlots, "release", release)


def extents_overlap(patch) -> None:
    def allocate_many(self, size: int, count: int):
        extents = original(self, size, count)
        if not extents or not extents[-1].offset:
            return extents
        extent = extents[-1]
        del self._live[extent.offset]
        moved = Extent(extent.offset - 512, extent.size, extent.generation)
        self._live[moved.offset] = moved
        return [*extents[:-1], moved]

    original = HostArena.allocate_many
    patch.setattr(HostArena, "allocate_many", allocate_many)


def the_only_replica_is_dropped(patch) -> None:
    patch.setattr(
        "ninfer_core.store.replicas.Replicas.may_drop_device",
        lambda self, page: page.device is not None and not page.active and page.host is not None,
    )


BUGS = (
    fork_without_copy,
    activate_without_copy,
    copy_one_column_short,
    sharing_takes_no_reference,
    pins_are_ignored,
    any_holder_may_write,
    truncation_ignores_the_protected_columns,
    truncation_keeps_the_host_copy,
    points_do_not_protect,
    units_are_released_twice,
    release_is_forgotten,
    settlement_loses_the_reservation,
    settlement_is_skipped,
    a_refusal_keeps_what_it_had,
    the_last_unit_is_given_twice,
    trimming_cuts_too_far,
    a_new_row_entry_is_not_logged,
    binding_sends_nothing,
    a_state_moves_although_shared,
    a_state_is_not_cleared,
    a_published_state_is_freed_with_its_first_holder,
    extents_overlap,
    the_only_replica_is_dropped,
)

CONTENT_BUGS = (
    fork_without_copy,
    activate_without_copy,
    copy_one_column_short,
    any_holder_may_write,
    a_new_row_entry_is_not_logged,
    binding_sends_nothing,
    a_state_moves_although_shared,
    a_state_is_not_cleared,
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_bug_is_noticed(monkeypatch, is_noticed, bug):
    bug(monkeypatch)
    assert is_noticed()


@pytest.mark.parametrize("bug", CONTENT_BUGS, ids=lambda bug: bug.__name__)
def test_wrong_content_is_seen_without_any_ledger_check(monkeypatch, is_noticed, bug):
    bug(monkeypatch)
    without_checks(monkeypatch)
    assert is_noticed(by_content=True)
