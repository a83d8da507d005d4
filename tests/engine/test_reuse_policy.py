"""The default cache policy by hand-made facts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from ninfer_core.contract.cache import Demand, Provenance, SaveOffer, SourceCandidate, Victim
from ninfer_core.contract.checkpoints import CheckpointAction, CheckpointFacts, RestoreWork
from ninfer_core.contract.frontend import RestoreKind
from ninfer_core.contract.resources import CheckpointRef, ResourceVector, Shortfall
from ninfer_core.contract.reuse import Tier
from ninfer_core.engine.policies_reuse import MAX_EVIDENCE, ReusePolicy

DELETE, DEMOTE = CheckpointAction.DELETE, CheckpointAction.DEMOTE
DROP_DEVICE, DROP_HOST = CheckpointAction.DROP_DEVICE, CheckpointAction.DROP_HOST
SHORT = Shortfall("main", 4, 0)
PROMPT = SimpleNamespace(length=1000)


def facts(frontier, tier=Tier.DEVICE):
    return CheckpointFacts(
        frontier=frontier,
        coverage={},
        replicas=frozenset({tier}),
        recovery_frontier=0,
        footprint=ResourceVector(),
    )


def source(index, frontier, *, bytes=0, moved=0.0, tier=Tier.DEVICE, own=False, order=1):
    work = RestoreWork(bytes, 1, 1000 - frontier)
    ref = CheckpointRef(1, index, 1)
    return SourceCandidate(ref, facts(frontier, tier), work, own, Provenance(order=order), moved)


def victim(index, frontier, fallback=0, *, pages=1, order=1, digest=None, superseded=False):
    name = digest or bytes([index])
    provenance = Provenance(RestoreKind.GENERATION_END, order, name, superseded)
    frees = ResourceVector(pages={"main": pages})
    ref = CheckpointRef(1, index, 1)
    return Victim(ref, facts(frontier), CheckpointAction.DELETE, frees, fallback, provenance)


def offer(
    frontier, fallback=0, *, displaces=(), kind=RestoreKind.USER_MESSAGE, digest=b"", order=1
):
    return SaveOffer(frontier, kind, ResourceVector(), fallback, digest, order, displaces)


def order_of(victims):
    return [one.ref.index for one in victims]


def wanted(policy, digest, *requests):
    for request in requests:
        policy.observe(Demand(request, 1, digest, adopted=False))


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        (RestoreKind.EXPLICIT, 1),
        (RestoreKind.USER_MESSAGE, 64),
        (RestoreKind.TURN_CLOSURE, 64),
        (RestoreKind.GENERATION_END, 62),
    ],
)
def test_what_is_not_kept_leaves_at_most_a_block_before_a_boundary(kind, least):
    """Behind the end of an answer two tokens close its message: one that is 62 past the point
    before it stands for a boundary at 64."""
    policy = ReusePolicy()
    assert policy.admit(offer(100 + least, 100, kind=kind))
    assert not policy.admit(offer(100 + least - 1, 100, kind=kind))


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (source(1, 600), source(2, 500)),
        (source(1, 600), source(2, 610, moved=10.5, tier=Tier.HOST)),
        (source(1, 610, moved=9.5), source(2, 600)),
        (source(1, 600, bytes=4), source(2, 600, bytes=5)),
        (source(1, 500, own=True, order=1), source(2, 500, order=9)),
        (source(1, 500, order=9), source(2, 500, order=1)),
    ],
    ids=[
        "deeper",
        "far from a slow tier",
        "from a fast tier",
        "fewer bytes",
        "own session",
        "newer",
    ],
)
def test_the_cheapest_way_to_the_end_of_the_prompt_is_first(better, worse):
    for given in ([better, worse], [worse, better]):
        assert list(ReusePolicy().rank_sources(PROMPT, given)) == [better, worse]


def test_a_source_dearer_than_the_root_is_none():
    far = source(1, 10, moved=10.5, tier=Tier.HOST)
    assert list(ReusePolicy().rank_sources(PROMPT, [far])) == []


def test_ordinary_victims_go_by_tokens_lost_for_what_they_free():
    one, two, three = victim(1, 900, 800), victim(2, 300), victim(3, 900, 0, pages=30)
    assert order_of(ReusePolicy().victims(SHORT, [one, two, three])) == [3, 1, 2]


def choices(index, frontier, *actions, restore=0.0, **rest):
    """The same checkpoint, once for each action."""
    one = victim(index, frontier, **rest)
    return [
        replace(one, action=action, restore_tokens=0.0 if action is DELETE else restore)
        for action in (*actions, DELETE)
    ]


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        (choices(1, 500, DEMOTE), DEMOTE),
        (choices(1, 63, DEMOTE), DELETE),
        (choices(1, 500, DEMOTE, superseded=True), DELETE),
        (choices(1, 512, DEMOTE, superseded=True), DEMOTE),
        (choices(1, 500, DEMOTE, restore=218.5), DELETE),
        (choices(1, 500, DEMOTE, restore=217.5), DEMOTE),
        (choices(1, 500, DROP_DEVICE, restore=499.0), DROP_DEVICE),
        (choices(1, 500, DROP_DEVICE, restore=501.0), DELETE),
        (choices(1, 63, DROP_HOST), DROP_HOST),
    ],
    ids=["worth", "short", "left", "long", "far", "near", "copied", "copied far", "twice"],
)
def test_what_is_worth_the_way_goes_to_the_host(given, chosen):
    """A demotion moves there and back, and must spare a block."""
    for order in (given, given[::-1]):
        assert [one.action for one in ReusePolicy().victims(SHORT, order)] == [chosen]


def test_what_was_wanted_goes_to_the_host_whatever_it_costs_and_last():
    policy = ReusePolicy()
    wanted(policy, b"a", 2, 3)
    reused = choices(1, 10, DEMOTE, restore=99.0, digest=b"a", order=2)
    plain = choices(2, 900, DEMOTE, restore=9.0)
    found = policy.victims(SHORT, [*reused, *plain])
    assert [(one.ref.index, one.action) for one in found] == [(2, DEMOTE), (1, DEMOTE)]


def test_a_save_may_send_to_the_host_what_it_may_not_delete():
    policy = ReusePolicy()
    wanted(policy, b"a", 2, 3)
    demotion, deletion = choices(1, 500, DEMOTE, digest=b"a", order=2)
    assert policy.admit(offer(100, displaces=(demotion,)))
    assert not policy.admit(offer(100, displaces=(deletion,)))


def test_age_and_a_successor_make_cheaper():
    policy = ReusePolicy()
    wanted(policy, b"something", 100)
    old, new = victim(1, 400, order=10), victim(2, 300, order=99)
    assert order_of(policy.victims(SHORT, [new, old])) == [1, 2]
    left, held = victim(3, 400, order=99, superseded=True), victim(4, 100, order=99)
    assert order_of(policy.victims(SHORT, [held, left])) == [3, 4]


def test_what_different_requests_wanted_goes_last_by_its_latest_demand():
    policy = ReusePolicy()
    wanted(policy, b"a", 2, 3)
    wanted(policy, b"b", 2, 9)
    reused = [victim(1, 10, digest=b"b", order=2), victim(2, 10, digest=b"a", order=2)]
    ordinary = [victim(number, 5000) for number in (3, 4, 5, 6)]
    assert order_of(policy.victims(SHORT, [*reused, *ordinary]))[-2:] == [2, 1]


def test_the_request_that_left_a_point_alone_is_no_demand():
    policy = ReusePolicy()
    wanted(policy, b"a", 2, 2)
    one, other = victim(1, 10, digest=b"a", order=2), victim(2, 5000)
    assert order_of(policy.victims(SHORT, [other, one])) == [1, 2]
    wanted(policy, b"a", 3)
    assert order_of(policy.victims(SHORT, [other, one])) == [2, 1]


def test_the_reused_have_three_quarters_and_the_newest_may_exceed_them():
    policy = ReusePolicy()
    for number in range(1, 5):
        wanted(policy, bytes([number]), 10 + number, 20 + number)
    four = [victim(number, 100, order=10 + number) for number in range(1, 5)]
    plain = victim(9, 100, order=1)
    assert order_of(policy.victims(SHORT, [*four, plain])) == [9, 1, 2, 3, 4]
    cheap = [victim(1, 100, order=11), *four[1:]]
    assert order_of(policy.victims(SHORT, cheap))[0] == 1, "beyond its share: ordinary"
    large = [victim(4, 100, pages=50, order=14), plain]
    assert order_of(policy.victims(SHORT, large)) == [9, 4]


def test_small_gains_are_not_saved():
    policy = ReusePolicy()
    assert policy.admit(offer(64))
    assert not policy.admit(offer(163, 100))
    assert policy.admit(offer(101, 100, kind=RestoreKind.EXPLICIT))
    assert not policy.admit(offer(100, 100, kind=RestoreKind.EXPLICIT))


def test_a_save_displaces_what_loses_less():
    policy = ReusePolicy()
    losses = (victim(1, 100), victim(2, 300, 200))
    assert policy.admit(offer(201, displaces=losses))
    assert not policy.admit(offer(200, displaces=losses))


def test_a_save_displaces_reused_points_only_if_wanted_later_itself():
    policy = ReusePolicy()
    wanted(policy, b"kept", 2, 5)
    reused = victim(1, 70, digest=b"kept", order=2)
    assert not policy.admit(offer(5000, displaces=(reused,), digest=b"new", order=6))
    wanted(policy, b"new", 4, 6)
    assert policy.admit(offer(5000, displaces=(reused,), digest=b"new", order=6))
    wanted(policy, b"kept", 7)
    assert not policy.admit(offer(5000, displaces=(reused,), digest=b"new", order=7))


def test_memory_is_bounded():
    policy = ReusePolicy()
    for number in range(MAX_EVIDENCE + 50):
        wanted(policy, number.to_bytes(4, "little"), number)
    assert len(policy._evidence) == MAX_EVIDENCE
