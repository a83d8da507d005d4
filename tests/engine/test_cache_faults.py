"""Records of kept contexts that are wrong: the cache goes, whatever runs does not notice.

sgl-project/sglang#12007, #28312: a check of the prefix tree failed after hours, and the server with
it.
"""

from __future__ import annotations

import logging

import pytest

from ninfer_core.contract.checkpoints import PlanKind
from ninfer_core.contract.engine import AvailabilityState
from ninfer_core.contract.errors import CacheFault, EngineFailure, InvalidRequest
from ninfer_core.contract.events import Failed, ReuseReason
from ninfer_core.contract.frontend import RestoreKind
from ninfer_core.contract.requests import ChatOptions
from ninfer_core.contract.resources import CheckpointRef
from ninfer_core.engine.policies_reuse import ReusePolicy
from ninfer_core.engine.states import RequestState
from ninfer_core.testing.engine_answers import expected_without_stop, result_of, run
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.fake_instance import KeepPolicy
from ninfer_core.testing.fake_transactions import FakeConfig

PROMPT = [3 + n % 50 for n in range(30)]
POINTS = ((10, RestoreKind.SYSTEM_AND_TOOLS.value), (21, RestoreKind.USER_MESSAGE.value))


def harness_over(policy=None, **sizes):
    config = FakeConfig(captures=True, **{"pages": 400, "slots": 40, **sizes})
    harness = EngineHarness(config, policy=policy or KeepPolicy())
    harness.program.may_be_forgotten = True
    return harness


def ask(harness, prompt, asked, points=POINTS):
    """The result, of which every token is as it must be."""
    chat = ChatOptions(template_kwargs={"points": points})
    result = result_of(harness, prompt, asked, chat=chat)
    count = asked.max_new_tokens
    assert list(result.token_ids) == expected_without_stop(prompt, 1, count)
    return result


def assert_only_the_cache_went(harness, asked, drops=1):
    """One drop, everything in its place, and the next prompts are kept and found again."""
    assert harness.core.stats().cache_drops == drops
    assert harness.lifecycle.availability().state is AvailabilityState.READY
    harness.check_released()
    other = [60 - n % 40 for n in range(30)]
    ask(harness, other, asked)
    assert ask(harness, other, asked).usage.cached_tokens >= 21
    assert harness.core.stats().cache_drops == drops


STEPS = ["restore_work", "plan_bind", "plan_capture"]


@pytest.mark.parametrize("step", STEPS)
def test_a_program_that_finds_a_record_wrong_is_asked_to_forget(options, step, caplog):
    harness, asked = harness_over(), options(4, ignore_eos=True)
    assert ask(harness, PROMPT, asked).usage.cached_tokens == 0
    beside = harness.submit([9, 8, 7], options(40, ignore_eos=True))
    harness.step(6)
    harness.faults.arm(step, CacheFault(f"fault of {step}"))
    again = [*PROMPT[:22], 60, 61, 62, 63]
    with caplog.at_level(logging.WARNING):
        result = ask(harness, again, asked, points=((24, POINTS[1][1]),))
    if step != "plan_capture":
        assert result.usage.cached_tokens == 0
    assert run(harness, beside).result.token_ids == tuple(expected_without_stop([9, 8, 7], 1, 40))
    assert harness.program.faults.reached["forget"] == 1
    said = [r for r in caplog.records if "was dropped" in r.getMessage()]
    assert len(said) == 1
    assert f"fault of {step}" in said[0].getMessage()
    assert said[0].exc_info is not None
    assert_only_the_cache_went(harness, asked)


def pressed(harness, options):
    """A cache that fills the store, and a request that needs room from it."""
    asked = options(4, ignore_eos=True)
    for number in range(8):
        ask(harness, [number + 3, *PROMPT[1:]], asked)
    return asked


@pytest.mark.parametrize("step", ["actions", "drop"])
def test_room_that_cannot_be_made_in_order_is_made_by_forgetting(options, step):
    harness = harness_over(pages=24, slots=20)
    asked = options(4, ignore_eos=True)
    harness.faults.arm(step, CacheFault(f"fault of {step}"))
    pressed(harness, options)
    assert harness.core.stats().cache_drops == 1
    assert harness.lifecycle.availability().state is AvailabilityState.READY
    harness.faults.disarm()
    ask(harness, [59, *PROMPT[1:]], asked)
    harness.check_released()


@pytest.mark.parametrize("step", ["plan_demote", "facts"])
def test_a_demotion_that_meets_a_wrong_record(options, step):
    harness = harness_over(ReusePolicy(least_gain=1), pages=24, slots=20, demotes=True, host=400)
    harness.faults.arm(step, CacheFault(f"fault of {step}"))
    pressed(harness, options)
    assert harness.core.stats().cache_drops == 1
    assert harness.lifecycle.availability().state is AvailabilityState.READY
    harness.check_released()


def lose_an_entry(catalogue):
    """The index still has it."""
    catalogue._entries.pop(next(iter(catalogue._entries)))


def lose_a_place(catalogue):
    """The index cannot take it out any more."""
    catalogue._index._places.pop(next(iter(catalogue._entries)))


def shift_an_entry(catalogue):
    """Facts of another frontier."""
    one, other = list(catalogue._entries.values())[:2]
    one.facts, other.facts = other.facts, one.facts


def name_a_stranger(catalogue):
    """A continuation with a point that nobody has."""
    next(iter(catalogue._entries.values())).owner.points.add(CheckpointRef(1, 2, 3))


def cut_the_tree(catalogue):
    for root in catalogue._index._roots.values():
        root.tails = dict.fromkeys(root.tails)


def lose_a_checkpoint(catalogue, program):
    """The Program knows nothing of it."""
    program.contexts.kept.retire(next(iter(catalogue._entries)))


DAMAGE = [lose_an_entry, shift_an_entry, cut_the_tree, lose_a_checkpoint]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda one: one.__name__)
def test_books_that_contradict_themselves_are_thrown_away(options, damage, monkeypatch):
    harness, asked = harness_over(), options(4, ignore_eos=True)
    ask(harness, PROMPT, asked)
    paused = [tracked for tracked in harness.requests if tracked.record.state is not None]
    assert all(one.record.state is RequestState.ENDED for one in paused)
    catalogue = harness.core.resources.catalogue
    damage(*[catalogue, harness.program][: damage.__code__.co_argcount])
    result = ask(harness, [*PROMPT[:22], 60, 61], asked, points=())
    assert result.usage.cached_tokens == 0
    assert result.timings.reuse_reason in (ReuseReason.EVICTED, ReuseReason.NO_MATCH)
    assert_only_the_cache_went(harness, asked)


@pytest.mark.parametrize("damage", [name_a_stranger, lose_a_place], ids=lambda one: one.__name__)
def test_books_that_fail_later_are_thrown_away_then(options, damage):
    """When the same conversation publishes its next point, or when one is given up."""
    harness = harness_over(pages=24, slots=20)
    asked = options(4, ignore_eos=True)
    ask(harness, PROMPT, asked)
    damage(harness.core.resources.catalogue)
    ask(harness, [*PROMPT, 7, 8, 9], asked, points=())
    pressed(harness, options)
    assert harness.core.stats().cache_drops == 1
    assert harness.lifecycle.availability().state is AvailabilityState.READY
    harness.check_released()


def raises(*_):
    raise ZeroDivisionError("a mistake of the policy")


def raises_a_request_error(*_):
    raise InvalidRequest("not a policy's to say")


def raises_late(*_):
    return (1 // 0 for _ in range(1))


@pytest.mark.parametrize(
    ("method", "broken"),
    [
        *((name, raises) for name in ("rank_sources", "victims", "admit", "observe")),
        *((name, raises_late) for name in ("rank_sources", "victims")),
        ("admit", raises_a_request_error),
    ],
)
def test_a_policy_that_raises_costs_the_cache_alone(options, method, broken, monkeypatch):
    policy = KeepPolicy()
    harness = harness_over(policy, pages=24, slots=20)
    asked = options(4, ignore_eos=True)
    pressed(harness, options)
    assert harness.core.stats().cache_drops == 0

    monkeypatch.setattr(policy, method, broken, raising=True)
    ask(harness, [10, *PROMPT[1:]], asked)
    pressed(harness, options)
    drops = harness.core.stats().cache_drops
    assert drops > 0
    monkeypatch.undo()
    ask(harness, [59, *PROMPT[1:]], asked)
    assert ask(harness, [59, *PROMPT[1:]], asked).usage.cached_tokens > 0
    assert harness.core.stats().cache_drops == drops
    assert harness.lifecycle.availability().state is AvailabilityState.READY


@pytest.mark.parametrize("kind", [PlanKind.BIND, PlanKind.DEMOTE])
def test_what_a_transaction_moves_goes_when_that_has_settled(options, kind):
    harness = harness_over(
        ReusePolicy(least_gain=1), pages=24, slots=20, demotes=True, host=400,
        bind_steps=4, demote_steps=4,
    )  # fmt: skip
    asked = options(4, ignore_eos=True)
    ask(harness, PROMPT, asked)
    if kind is PlanKind.BIND:
        tracked = harness.submit([*PROMPT[:22], 60, 61], asked)
    else:
        tracked = harness.submit([50 - n % 40 for n in range(50)], options(10, ignore_eos=True))
    for _ in range(200):
        current = harness.core.contexts.current
        if current is not None and current.source is not None and current.transaction.kind is kind:
            break
        harness.step()
    moving = harness.core.contexts.current.source
    harness.core.resources.guard.run(fault, None)
    harness.check()
    assert harness.core.resources.guard.moved == [moving]
    assert not isinstance(run(harness, tracked), Failed)
    assert harness.core.resources.guard.moved == []
    assert moving not in harness.program.contexts.checkpoints
    assert_only_the_cache_went(harness, asked)


def fault():
    raise CacheFault("a fault found between two cycles")


def test_a_program_that_cannot_be_trusted_behind_it_ends_the_engine(options):
    harness, asked = harness_over(), options(4, ignore_eos=True)
    ask(harness, PROMPT, asked)
    harness.faults.arm("restore_work", CacheFault("fault of a record"))
    harness.faults.arm("forget", EngineFailure("a fault of what runs"))
    tracked = harness.submit([*PROMPT[:22], 60], asked)
    assert isinstance(run(harness, tracked), Failed)
    assert harness.lifecycle.availability().state is AvailabilityState.FAILED


@pytest.mark.parametrize("error", [EngineFailure("a fault"), ZeroDivisionError("a fault")])
def test_other_failures_of_the_program_still_end_the_engine(options, error):
    harness, asked = harness_over(), options(4, ignore_eos=True)
    ask(harness, PROMPT, asked)
    harness.faults.arm("restore_work", error)
    tracked = harness.submit([*PROMPT[:22], 60], asked)
    assert isinstance(run(harness, tracked), Failed)
    assert harness.lifecycle.availability().state is AvailabilityState.FAILED
    assert harness.core.stats().cache_drops == 0
