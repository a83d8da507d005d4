"""Replicas: which is valid, when one may go, and that a page takes both along when it dies."""

from __future__ import annotations

import pytest

from ninfer_core.store import (
    HostArena,
    LogicalPages,
    ProtectedRangeError,
    Replicas,
    StaleHandleError,
    TransitionError,
)

WRITER = 1


@pytest.fixture
def pool(new_pool):
    return new_pool(4)


@pytest.fixture
def arena():
    return HostArena("host_bytes", 4096)


@pytest.fixture
def pages(pool, arena):
    return LogicalPages(pool, arena)


@pytest.fixture
def replicas(pages, arena):
    return Replicas(pages, arena)


@pytest.fixture
def page(pages, pool, grant_of):
    return pages.create(grant_of(pool, 1).draw("main"), WRITER)


def test_rewriting_is_a_new_epoch_and_clips_the_replicas(pages, page, replicas, arena):
    pages.commit(page, WRITER, 50)
    pin = pages.pin(page, 45)
    replicas.publish_host(pin, arena.allocate(512))
    pages.unpin(pin)
    pages.truncate(page, WRITER, 50)
    assert page.epoch == 1, "nothing was forgotten"
    pages.truncate(page, WRITER, 30)
    assert (page.epoch, page.host.epoch, page.host.coverage, page.device.coverage) == (2, 2, 30, 30)
    pages.commit(page, WRITER, 48)
    assert page.on_device(48)
    assert page.on_host(30)
    assert not page.on_host(31), "the columns from 30 on were written anew"


def test_the_last_reference_or_pin_frees_unit_and_extent(pages, page, pool, replicas, arena):
    pages.commit(page, WRITER, 50)
    pin = pages.pin(page, 50)
    replicas.publish_host(pin, arena.allocate(512))
    pages.disown(page, WRITER)
    pages.unhold(page, 50)
    assert (page.alive, pool.allocated) == (True, 1), "the pin keeps it"
    pages.unpin(pin)
    assert (page.alive, pool.allocated, arena.used_bytes) == (False, 0, 0)


def test_the_device_replica_goes_only_when_idle_and_covered(pages, page, replicas, arena, pool):
    pages.commit(page, WRITER, 50)
    pin = pages.pin(page, 40)
    replicas.publish_host(pin, arena.allocate(512))
    assert not replicas.may_drop_device(page), "a writer and a pin are there"
    pages.hold(page, 40)
    pages.disown(page, WRITER)
    pages.unpin(pin)
    with pytest.raises(ProtectedRangeError):
        replicas.drop_device(page)
    pages.unhold(page, 50)
    page.active += 1
    assert not replicas.may_drop_device(page), "a running space uses it"
    page.active -= 1
    replicas.drop_device(page)
    assert (page.device, page.committed, pool.allocated) == (None, 40, 0)
    with pytest.raises(StaleHandleError):
        replicas.drop_device(page)
    with pytest.raises(ProtectedRangeError):
        replicas.drop_host(page)
    pages.check()


def test_a_restore_publishes_what_its_pin_kept(pages, page, replicas, arena, pool, grant_of):
    pages.commit(page, WRITER, 40)
    pin = pages.pin(page, 40)
    replicas.publish_host(pin, arena.allocate(512))
    pages.disown(page, WRITER)
    pages.unpin(pin)
    replicas.drop_device(page)
    pin = pages.pin(page, 40)
    unit = replicas.receive(grant_of(pool, 1))
    pages.check()
    replicas.publish_device(pin, unit)
    pages.unpin(pin)
    assert page.on_device(40)
    replicas.drop_host(page)
    assert (page.host, arena.used_bytes) == (None, 0)
    with pytest.raises(StaleHandleError):
        replicas.publish_device(pin, unit)


def test_a_restore_given_up_returns_its_unit_once(pages, replicas, pool, grant_of):
    unit = replicas.receive(grant_of(pool, 1))
    replicas.discard(unit)
    assert pool.allocated == 0
    with pytest.raises(StaleHandleError):
        replicas.discard(unit)


def test_a_longer_host_copy_replaces_a_shorter_one(pages, page, replicas, arena):
    pages.commit(page, WRITER, 50)
    short, long = pages.pin(page, 30), pages.pin(page, 50)
    replicas.publish_host(short, arena.allocate(512))
    replicas.publish_host(long, arena.allocate(512))
    assert (page.host.coverage, arena.used_bytes) == (50, 512)
    with pytest.raises(TransitionError, match="already covers 50"):
        replicas.publish_host(short, arena.allocate(512))
