"""The search for room does not grow with what is kept."""

from __future__ import annotations

from collections import Counter

import pytest

from ninfer_core.contract.checkpoints import CheckpointAction, CheckpointFacts, Tier
from ninfer_core.contract.frontend import RestoreKind
from ninfer_core.contract.resources import CheckpointRef, ProgramLimits, ResourceVector, Shortfall
from ninfer_core.engine.catalogue import Catalogue, CatalogueEntry, Continuation
from ninfer_core.engine.costs import Costs
from ninfer_core.engine.metrics import Metrics
from ninfer_core.engine.policies_reuse import ReusePolicy
from ninfer_core.engine.reclaiming import LOOKS, WINDOW, Reclaimer, Relief
from ninfer_core.engine.token_path import TokenPath
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.fake_instance import KeepPolicy
from ninfer_core.testing.fake_transactions import FakeConfig

SHORT = Shortfall("pages", 1, 0)


class Room:
    """A Program of checkpoints that hold ``frees`` pages each; ``groups`` hold some together."""

    def __init__(self, frees, groups=()):
        self.frees = dict(frees)
        self.groups = [frozenset(group) for group in groups]
        self.calls = Counter()

    def facts(self, ref):
        self.calls["facts"] += 1
        return facts()

    def actions(self, ref):
        self.calls["actions"] += 1
        return {CheckpointAction.DELETE: ResourceVector(pages={"pages": self.frees[ref]})}

    def joint(self, axis):
        self.calls["joint"] += 1
        return self.groups

    def drop(self, ref, action):
        self.calls["drop"] += 1
        del self.frees[ref]
        for group in [group for group in self.groups if ref in group]:
            self.groups.remove(group)
            if len(group) == 2:
                [left] = group - {ref}
                self.frees[left] += 1


def facts(frontier=64):
    return CheckpointFacts(
        frontier=frontier,
        coverage={"pages": frontier},
        replicas=frozenset({Tier.DEVICE}),
        recovery_frontier=0,
        footprint=ResourceVector(state_slots=1, pages={"pages": 1}),
    )


def reclaimer_over(program, policy=None):
    """Every checkpoint of ``program`` at a path of its own, in the order of the references."""
    catalogue = Catalogue()
    for order, ref in enumerate(program.frees):
        tokens = b"".join((1000 * order + n).to_bytes(4, "little") for n in range(64))
        path = TokenPath(("t", None), tokens)
        entry = CatalogueEntry(
            ref=ref, facts=facts(), kind=RestoreKind.GENERATION_END, order=order,
            digest=path.digests([64])[64], owner=Continuation(None, order),
        )  # fmt: skip
        catalogue.publish(entry, path)
    return Reclaimer(program, policy or KeepPolicy(), catalogue, Metrics(), Costs()), catalogue


def refs(count):
    return [CheckpointRef(1, index, 1) for index in range(count)]


@pytest.mark.parametrize("count", [10, 1000])
def test_a_window_of_the_cache_is_looked_at(count) -> None:
    program = Room(dict.fromkeys(refs(count), 1))
    reclaimer, catalogue = reclaimer_over(program, ReusePolicy())
    for _ in range(5):
        assert reclaimer.relieve(SHORT) is Relief.FREED
    assert program.calls["drop"] == 5
    assert program.calls["actions"] <= 5 * WINDOW
    assert len(catalogue) == count - 5
    assert set(program.frees) == {*refs(count)[5:]}, "the oldest go first"


def test_those_that_free_nothing_are_not_looked_at_every_time() -> None:
    """Of 1,000 only the last ten hold a page alone."""
    named = refs(1000)
    program = Room({ref: int(ref in named[-10:]) for ref in named})
    reclaimer, _ = reclaimer_over(program)
    assert reclaimer.relieve(SHORT) is Relief.FREED
    assert program.calls["actions"] <= 1000
    program.calls.clear()
    for _ in range(9):
        assert reclaimer.relieve(SHORT) is Relief.FREED
    assert program.calls["actions"] <= 9 * LOOKS
    assert reclaimer.relieve(SHORT) is Relief.NOTHING


def test_a_vain_search_is_not_repeated_until_something_changes() -> None:
    program = Room(dict.fromkeys(refs(500), 0))
    reclaimer, _ = reclaimer_over(program)
    for _ in range(20):
        assert reclaimer.relieve(SHORT) is Relief.NOTHING
    assert (program.calls["actions"], program.calls["joint"]) == (500, 1)
    reclaimer.changed()
    assert reclaimer.relieve(SHORT) is Relief.NOTHING
    assert program.calls["actions"] == 1000


def test_the_least_valuable_group_goes_whole() -> None:
    a, b, c, d, e = refs(5)
    program = Room(dict.fromkeys((a, b, c, d, e), 0), [{c, d, e}, {a, d}, {b, c}])
    reclaimer, catalogue = reclaimer_over(program)
    assert reclaimer.relieve(SHORT) is Relief.FREED
    # The oldest first: of {a, d}, {b, c} and {c, d, e} the second keeps the newest.
    assert {entry.ref for entry in catalogue} == {a, d, e}


def test_a_group_with_the_source_goes_last_or_never() -> None:
    a, b, c, d = refs(4)
    program = Room(dict.fromkeys((a, b, c, d), 0), [{a, b}, {c, d}])
    reclaimer, catalogue = reclaimer_over(program)
    assert reclaimer.relieve(SHORT, a) is Relief.FREED
    assert {entry.ref for entry in catalogue} == {a, b}
    assert reclaimer.relieve(SHORT, a, keep=True) is Relief.NOTHING
    reclaimer.leased = b
    assert reclaimer.relieve(SHORT) is Relief.NOTHING
    reclaimer.leased = None
    reclaimer.changed()
    assert reclaimer.relieve(SHORT, a) is Relief.FREED
    assert len(catalogue) == 0


def test_what_stood_above_a_deleted_point_is_looked_at_next() -> None:
    """It may hold room alone from then on."""
    named = refs(60)
    catalogue = Catalogue()
    tokens = b"".join(n.to_bytes(4, "little") for n in range(128))
    path, owner = TokenPath(("t", None), tokens), Continuation(None, 0)
    for order, ref in enumerate(named):
        at = 64 + order
        entry = CatalogueEntry(
            ref=ref, facts=facts(at), kind=RestoreKind.EXPLICIT, order=order,
            digest=path.digests([at])[at], owner=owner,
        )  # fmt: skip
        catalogue.publish(entry, path)
    catalogue.put_off(named[9])
    catalogue.discard(named[10], given_up=True)
    assert next(catalogue.oldest(Tier.DEVICE)).ref == named[9]


def calls_of_a_long_answer(count, options):
    """The most calls of each kind in one cycle, of one long answer beside ``count`` kept ends that
    fill the store. Each of its pages is taken from them."""
    limits = ProgramLimits(max_context=400, max_concurrency=2, prefill_chunk=16, vocab_rows=64)
    config = FakeConfig(page_tokens=4, pages=2 * count + 8, slots=count + 4)
    harness = EngineHarness(config, limits=limits, policy=ReusePolicy(least_gain=1))
    core, program = harness.core, harness.program
    asked = options(3, ignore_eos=True)
    for number in range(count):
        ids = [3 + number % 60, 3 + number // 60 % 60, 9, 8, 7]
        tracked = harness.submit(ids, asked)
        while not tracked.response.done:
            core.step()
        harness.close(tracked)
        harness.requests.clear()
    assert len(core.resources) > count - 6
    most, calls = Counter(), Counter()
    for name in ("actions", "facts", "drop", "joint", "restore_work", "plan_bind"):
        real = getattr(program, name)

        def counted(*args, name=name, real=real):
            calls[name] += 1
            return real(*args)

        setattr(program, name, counted)
    tracked = harness.submit([5, 6, 7, 8], options(90, ignore_eos=True))
    rounds = 0
    while not tracked.response.done:
        calls.clear()
        core.step()
        rounds += 1
        most |= calls
    assert core.stats().cache_drops == 0
    assert core.stats().reclaimed > 5
    return most


def test_no_cycle_of_a_long_answer_grows_with_what_is_kept(options) -> None:
    few, many = (calls_of_a_long_answer(count, options) for count in (10, 1000))
    assert many["drop"] == few["drop"]
    assert many["actions"] <= WINDOW * many["drop"]
    assert many["joint"] == 0
    assert (many["facts"], many["restore_work"]) == (few["facts"], few["restore_work"])
