"""Answers of a cache policy that are none: no choice, and said once."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace

import numpy as np
import pytest

from ninfer_core.contract.checkpoints import CheckpointAction
from ninfer_core.contract.engine import AvailabilityState
from ninfer_core.contract.resources import CheckpointRef
from ninfer_core.engine.checked_policy import CheckedPolicy
from ninfer_core.engine.policies_reuse import ReusePolicy
from ninfer_core.testing.fake_instance import KeepPolicy
from tests.engine.test_cache_faults import PROMPT, ask, harness_over, pressed


def nothing(*_):
    return None


def a_number(*_):
    return 7


def strangers(_, candidates):
    return [*candidates, "another"][1:]


def references(_, candidates):
    return [candidate.ref for candidate in candidates]


def another_checkpoint(_, candidates):
    return [replace(candidates[0], ref=CheckpointRef(9, 9, 9)), *candidates[1:]]


def without_end(_, candidates):
    return itertools.cycle(candidates)


def a_mapping(_, candidates):
    return dict.fromkeys(range(len(candidates)))


def one_of_them_twice(_, candidates):
    return [candidates[-1]] * max(2, len(candidates))


WRONG = [
    *(nothing, a_number, strangers, references, another_checkpoint, without_end, a_mapping),
    one_of_them_twice,
]


def cached(harness, options):
    """Tokens that the second of two prompts with one beginning found."""
    asked = options(4, ignore_eos=True)
    ask(harness, PROMPT, asked)
    return ask(harness, [*PROMPT[:22], 60, 61], asked).usage.cached_tokens


def goes_on(harness):
    assert harness.lifecycle.availability().state is AvailabilityState.READY
    assert harness.core.stats().cache_drops == 0


@pytest.mark.parametrize("answer", WRONG, ids=lambda one: one.__name__)
def test_a_ranking_that_is_none_means_the_root(options, monkeypatch, caplog, answer):
    policy = KeepPolicy()
    harness = harness_over(policy)
    assert cached(harness, options) > 0
    monkeypatch.setattr(policy, "rank_sources", answer)
    with caplog.at_level(logging.ERROR):
        assert cached(harness, options) == 0
    (said,) = [record.getMessage() for record in caplog.records]
    assert "KeepPolicy answered rank_sources with" in said
    goes_on(harness)


@pytest.mark.parametrize("demotes", [False, True])
@pytest.mark.parametrize("answer", WRONG, ids=lambda one: one.__name__)
def test_victims_that_are_none_are_those_that_come(options, monkeypatch, caplog, answer, demotes):
    policy = ReusePolicy(least_gain=1)
    harness = harness_over(policy, pages=24, slots=20, demotes=demotes, host=400)
    monkeypatch.setattr(policy, "victims", answer)
    with caplog.at_level(logging.ERROR):
        pressed(harness, options)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "ReusePolicy answered victims with" in said
    goes_on(harness)


@pytest.mark.parametrize("method", ["admit", "keeps"])
def test_what_is_no_truth_keeps_nothing(options, monkeypatch, caplog, method):
    class Vague(KeepPolicy):
        pass

    monkeypatch.setattr(Vague, method, nothing if method == "admit" else "yes")
    harness = harness_over(Vague())
    with caplog.at_level(logging.ERROR):
        assert cached(harness, options) == 0
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"Vague answered {method} with" in said
    goes_on(harness)


def test_a_property_that_raises_keeps_nothing():
    class Broken(KeepPolicy):
        @property
        def keeps(self):
            raise ZeroDivisionError

    assert CheckedPolicy(Broken()).keeps is False


@pytest.mark.parametrize("answer", [True, np.True_])
def test_truths(answer):
    class Sure(KeepPolicy):
        keeps = answer

    assert CheckedPolicy(Sure()).keeps is True


def test_what_a_policy_does_to_its_list_stays_there():
    class Careless(KeepPolicy):
        def victims(self, shortfall, candidates):
            chosen = candidates[:1]
            candidates.clear()
            return chosen

    candidates = [CheckpointAction.DELETE, CheckpointAction.DEMOTE]
    assert CheckedPolicy(Careless()).victims(None, candidates) == (CheckpointAction.DELETE,)
    assert len(candidates) == 2
