"""Owners of restore points: sessions, forks, late publications, what was given up."""

from __future__ import annotations

from array import array

import pytest

from ninfer_core.contract.checkpoints import CheckpointFacts
from ninfer_core.contract.frontend import RestoreKind
from ninfer_core.contract.resources import CheckpointRef, ResourceVector
from ninfer_core.contract.reuse import Tier
from ninfer_core.engine.catalogue import MAX_REMEMBERED, Catalogue, CatalogueEntry
from ninfer_core.engine.token_path import TokenPath

KEY = (None, "me")


def path(tokens, space=("template", None)):
    return TokenPath(space, array("i", tokens).tobytes())


class Shelf:
    """A catalogue and short ways to fill it."""

    def __init__(self):
        self.catalogue = Catalogue()
        self.count = 0

    def put(self, tokens, order, owner, kind=RestoreKind.GENERATION_END):
        self.count += 1
        where = path(tokens)
        facts = CheckpointFacts(
            frontier=len(tokens),
            coverage={},
            replicas=frozenset({Tier.DEVICE}),
            recovery_frontier=0,
            footprint=ResourceVector(),
        )
        entry = CatalogueEntry(
            ref=CheckpointRef(1, self.count, 1),
            facts=facts,
            kind=kind,
            order=order,
            digest=where.digests([len(tokens)])[len(tokens)],
            owner=owner,
        )
        self.catalogue.publish(entry, where)
        return entry


@pytest.fixture
def shelf():
    return Shelf()


def test_an_older_request_that_ends_late_does_not_take_the_session_over(shelf):
    catalogue = shelf.catalogue
    old, new = (catalogue.owner_of(KEY, None, ticket) for ticket in (1, 2))
    assert old is new
    newer = shelf.put([1, 2, 3], 2, new)
    late = shelf.put([1, 2, 3, 4, 5], 1, old)
    assert catalogue.bound(KEY) is newer
    assert (newer.superseded, late.superseded) == (False, True)
    assert late in catalogue.on_path(path([1, 2, 3, 4, 5, 6]), 5), "still found by its content"


def test_a_turn_supersedes_the_points_of_the_turn_before(shelf):
    owner = shelf.catalogue.owner_of(KEY, None, 1)
    shared = shelf.put([1], 1, owner, RestoreKind.SYSTEM_AND_TOOLS)
    marked = shelf.put([1, 2], 1, owner, RestoreKind.EXPLICIT)
    before = shelf.put([1, 2, 3], 1, owner)
    point = shelf.put([1, 2, 3, 4], 2, owner, RestoreKind.RESPONSE_REPLAY)
    end = shelf.put([1, 2, 3, 4, 5], 2, owner)
    assert [e.superseded for e in (shared, marked, before, point, end)] == [
        False,
        False,
        True,
        False,
        False,
    ]


def test_history_without_a_key_has_an_owner_by_content_and_forks(shelf):
    catalogue = shelf.catalogue
    first = catalogue.owner_of(None, None, 1)
    end = shelf.put([1, 2], 1, first)
    assert catalogue.owner_of(None, end, 2) is first, "the next turn goes on"
    assert catalogue.owner_of(None, end, 3) is not first, "another that parts from there does not"
    system = shelf.put([1], 1, first, RestoreKind.SYSTEM_AND_TOOLS)
    assert catalogue.owner_of(None, system, 4) is not first, "shared points own nobody"


def test_the_same_key_under_another_salt_is_another_session(shelf):
    one = shelf.catalogue.owner_of(("a", "me"), None, 1)
    assert shelf.catalogue.owner_of(("b", "me"), None, 2) is not one


def test_a_session_lives_as_long_as_its_points_and_requests(shelf):
    owner = shelf.catalogue.owner_of(KEY, None, 1)
    entry = shelf.put([1, 2], 1, owner)
    del owner
    assert shelf.catalogue.session(KEY) is not None
    shelf.catalogue.discard(entry.ref)
    del entry
    assert shelf.catalogue.session(KEY) is None


def test_what_was_given_up_is_remembered_within_bounds(shelf):
    catalogue, owner = shelf.catalogue, shelf.catalogue.owner_of(None, None, 1)
    entries = [shelf.put([7, number], number, owner) for number in range(MAX_REMEMBERED + 1)]
    for entry in entries:
        catalogue.discard(entry.ref, given_up=True)
    assert not catalogue.was_given_up(path([7, 0, 1])), "the oldest is forgotten"
    assert catalogue.was_given_up(path([7, 1, 1]))
    assert not catalogue.was_given_up(path([7, 1])), "a hit leaves the last token"
    assert not catalogue.was_given_up(path([7, 1, 1], ("template", "salt")))
    shelf.put([7, 1], 900, owner)
    assert not catalogue.was_given_up(path([7, 1, 1])), "it is there again"


def test_another_template_is_told_and_another_salt_is_not(shelf):
    shelf.put([1, 2], 1, shelf.catalogue.owner_of(None, None, 1))
    assert shelf.catalogue.elsewhere(path([1, 2, 3], ("thinking", None)))
    assert not shelf.catalogue.elsewhere(path([1, 2, 3], ("thinking", "mine")))
    assert not shelf.catalogue.elsewhere(path([1, 2, 3]))
    assert not shelf.catalogue.elsewhere(path([5, 2, 3], ("thinking", None)))
