"""Restore points that prompts leave behind, and what later prompts say of them."""

from __future__ import annotations

import pytest

from ninfer_core.contract.checkpoints import PlanKind
from ninfer_core.contract.events import Failed, Finished, FinishReason, ReuseReason
from ninfer_core.contract.frontend import RestoreKind
from ninfer_core.contract.requests import CacheMode, CacheRequest, ChatOptions
from ninfer_core.contract.reuse import Tier
from ninfer_core.engine.catalogue import Catalogue
from ninfer_core.engine.policies import OffPolicy
from ninfer_core.engine.policies_reuse import ReusePolicy
from ninfer_core.engine.prefix_index import PrefixIndex
from ninfer_core.engine.states import RequestState
from ninfer_core.engine.token_path import TokenPath
from ninfer_core.testing.engine_answers import expected_without_stop, result_of, run
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.fake_accounts import Amount
from ninfer_core.testing.fake_instance import KeepPolicy
from ninfer_core.testing.fake_transactions import FakeConfig

PROMPT = [3 + n % 50 for n in range(30)]
SYSTEM, USER = RestoreKind.SYSTEM_AND_TOOLS, RestoreKind.USER_MESSAGE
POINTS = ((10, SYSTEM.value), (21, USER.value))


def chat(points=POINTS, **more):
    return {"chat": ChatOptions(template_kwargs={"points": points, **more})}


def caching(policy=None, rounds_ahead=0, **sizes):
    config = FakeConfig(captures=True, **sizes)
    return EngineHarness(config, policy=policy or KeepPolicy(), rounds_ahead=rounds_ahead)


def captured(harness):
    """Frontiers of what prompts left behind, by kind."""
    entries = harness.core.resources.catalogue
    kept = [(e.facts.frontier, e.kind) for e in entries if e.kind is not RestoreKind.GENERATION_END]
    return sorted(kept)


def start_of(harness, prompt, options, **rest):
    tracked = harness.submit(prompt, options, **rest)
    end = run(harness, tracked)
    assert isinstance(end, Finished), end
    return tracked.events[0], end.result


def test_a_prompt_leaves_its_restore_points_and_others_start_there(options):
    harness = caching()
    asked = options(4, ignore_eos=True)
    result = result_of(harness, PROMPT, asked, **chat())
    assert captured(harness) == [(10, SYSTEM), (21, USER)]
    assert result.timings.captures == 2
    for length, reused, point in ((25, 21, USER), (22, 21, USER), (21, 10, SYSTEM)):
        other = [*PROMPT[:length], 60, 61] if length > 21 else [*PROMPT[:20], 60, 61]
        start, answer = start_of(harness, other, asked, **chat(()))
        assert (start.reused_tokens, start.reuse_point) == (reused, point)
        assert start.reuse_tier is Tier.DEVICE
        assert answer.usage.cached_tokens == answer.timings.cached_tokens == reused
        assert answer.timings.reuse_point is point
        assert answer.token_ids == tuple(expected_without_stop(other, 1, 4))
    stats = harness.core.stats()
    assert (stats.captures, stats.kept_ends, stats.checkpoints) == (2, 4, 6)
    assert stats.reuse == {"no_match": 1, "shared_checkpoint": 3}


def test_the_same_prompt_again_reads_at_least_one_token(options):
    harness = caching()
    asked = options(3, ignore_eos=True)
    for length in (9, 10, 11, 12, 13):
        points = ((length - 1, RestoreKind.RESPONSE_REPLAY.value),)
        prompt = [20 + length, *PROMPT[1:length]]
        first = result_of(harness, prompt, asked, **chat(points))
        start, again = start_of(harness, prompt, asked, **chat(points))
        assert start.reused_tokens == length - 1
        assert again.token_ids == first.token_ids
        harness.core.resources.drop_all()


def test_a_request_in_capture_is_in_no_unit_and_others_go_on(options):
    harness = caching(capture_steps=4)
    other = harness.submit([5, 6], options(20, ignore_eos=True))
    harness.step(3)
    reading = harness.submit(PROMPT, options(3, ignore_eos=True), **chat())
    while not harness.program.contexts.capturing:
        harness.step()
    held, before = reading.record.held_sequence(), len(other.record.tokens)
    frontier = harness.program.contexts.sequence(held).frontier
    assert frontier == 10
    assert reading.record.state is RequestState.PREFILL
    harness.step(2)
    assert harness.program.contexts.capturing
    assert harness.program.contexts.sequence(held).frontier == frontier
    assert len(other.record.tokens) == before + 2
    harness.run_dry()
    assert reading.record.tokens == expected_without_stop(PROMPT, 1, 3)


def test_a_cancel_in_a_capture_ends_it_first(options):
    harness = caching(capture_steps=4)
    reading = harness.submit(PROMPT, options(3), **chat())
    while not harness.program.contexts.capturing:
        harness.step()
    harness.step()
    harness.cancel(reading)
    harness.run_dry()
    assert reading.record.ending is FinishReason.CANCELLED
    assert captured(harness) == []
    harness.check_released()


def test_a_capture_that_fails_costs_nobody_anything(options):
    harness = caching(capture_steps=2)
    harness.program.contexts.abort_next[PlanKind.CAPTURE] = 1
    result = result_of(harness, PROMPT, options(3, ignore_eos=True), **chat())
    assert list(result.token_ids) == expected_without_stop(PROMPT, 1, 3)
    assert captured(harness) == [(21, USER)]


def test_a_program_that_cannot_capture_is_asked_and_left_alone(options):
    harness = EngineHarness(policy=KeepPolicy())
    result = result_of(harness, PROMPT, options(3, ignore_eos=True), **chat())
    assert (captured(harness), result.timings.captures) == ([], 0)
    assert harness.program.faults.reached["plan_capture"] == 2


@pytest.mark.parametrize(
    ("policy", "cache"),
    [(KeepPolicy(), CacheRequest(mode=CacheMode.DISABLED)), (OffPolicy(), CacheRequest())],
    ids=["disabled", "off"],
)
def test_who_takes_no_part_leaves_and_finds_nothing(options, policy, cache):
    harness = caching(policy)
    for _ in range(2):
        start, _ = start_of(harness, PROMPT, options(3, ignore_eos=True), cache=cache, **chat())
        assert (start.reused_tokens, start.reuse_reason) == (0, ReuseReason.DISABLED)
    assert not harness.program.contexts.checkpoints
    assert harness.program.faults.reached["plan_capture"] == 0


def test_a_request_that_takes_no_part_leaves_no_evidence(options):
    policy = ReusePolicy()
    harness = caching(policy)
    off = CacheRequest(mode=CacheMode.DISABLED)
    result_of(harness, PROMPT, options(3), cache=off, **chat())
    assert not policy._evidence


def test_a_capture_waits_for_the_transaction_of_somebody_else(options):
    harness = caching(bind_steps=6)
    reading = harness.submit(PROMPT, options(3, ignore_eos=True), **chat())
    while harness.core.contexts.open or reading.record.state is not RequestState.PREFILL:
        harness.step()
    harness.submit([5, 6, 7], options(3, ignore_eos=True), **chat(()))
    harness.step(3)
    assert harness.core.contexts.open
    assert reading.record in harness.core.captures.waiting
    harness.run_dry()
    assert captured(harness) == [(10, SYSTEM), (21, USER)]


def test_no_capture_while_room_is_short(options):
    """An older resident and a paused one want every page: nothing is saved on the side."""
    harness = caching(pages=14, slots=4)
    first = harness.submit([5] * 12, options(30, ignore_eos=True), **chat(()))
    harness.step(3)
    harness.program.accounts.take("ballast", Amount(pages=harness.program.accounts.free.pages - 6))
    second = harness.submit(PROMPT[:20], options(20, ignore_eos=True), **chat(()))
    while second.record.state is not RequestState.PAUSED:
        harness.step()
    late = harness.submit(PROMPT[:12], options(2), **chat(((6, USER.value),)))
    for _ in range(200):
        harness.step()
        assert not (harness.program.contexts.capturing and harness.core.scheduler.paused)
        if first.response.ends:
            break
    harness.program.accounts.give_all("ballast")
    harness.core.events.changed()
    harness.run_dry()
    assert all(t.response.ends == 1 for t in (first, second, late))


def test_a_constant_hash_costs_time_alone(options):
    outcomes = []
    for digest in (hash, lambda piece: 0):
        harness = caching(pages=400, slots=40)
        harness.core.resources.catalogue._index = PrefixIndex(digest)
        for first in (7, 8, 9):
            prompt = [first, *PROMPT]
            points = ((11, SYSTEM.value), (22, USER.value))
            for cut in (15, 25, 31):
                asked = options(3, ignore_eos=True)
                start, answer = start_of(harness, prompt[:cut], asked, **chat(points))
                assert list(answer.token_ids) == expected_without_stop(prompt[:cut], 1, 3)
                outcomes.append((start.reused_tokens, start.reuse_point))
    assert outcomes[:9] == outcomes[9:]
    assert [reused for reused, _ in outcomes[:3]] == [0, 11, 22]


def test_never_across_salts_and_templates(options):
    harness = caching(pages=400, slots=40)
    asked = options(3, ignore_eos=True)
    result_of(harness, PROMPT, asked, cache=CacheRequest(salt="a"), **chat())
    start, _ = start_of(harness, PROMPT, asked, cache=CacheRequest(salt="b"), **chat())
    assert (start.reused_tokens, start.reuse_reason) == (0, ReuseReason.NO_MATCH)
    same = CacheRequest(salt="a")
    start, _ = start_of(harness, PROMPT, asked, cache=same, **chat(template="other"))
    assert (start.reused_tokens, start.reuse_reason) == (0, ReuseReason.OTHER_TEMPLATE)


def test_why_nothing_was_reused(options):
    harness = caching()
    asked = options(3, ignore_eos=True)
    result_of(harness, PROMPT, asked, **chat())
    start, _ = start_of(harness, [9], asked, **chat(()))
    assert start.reuse_reason is ReuseReason.TOO_SHORT
    resources = harness.core.resources
    while len(resources):
        victim = next(iter(resources.reclaimer.victims(_any_slot())))
        resources.reclaimer.give_up(victim)
    start, _ = start_of(harness, [*PROMPT[:22], 4], asked, **chat(()))
    assert (start.reused_tokens, start.reuse_reason) == (0, ReuseReason.EVICTED)
    assert harness.core.stats().reclaimed > 0


def test_a_bind_that_fails_goes_on_without_its_source(options):
    harness = caching()
    asked = options(3, ignore_eos=True)
    result_of(harness, PROMPT[:22], asked, **chat(((10, SYSTEM.value),)))
    harness.program.contexts.abort_next[PlanKind.BIND] = 1
    start, _ = start_of(harness, [*PROMPT[:11], 60], asked, **chat(()))
    assert (start.reused_tokens, start.reuse_reason) == (0, ReuseReason.NO_ROOM)


def test_the_source_is_the_last_to_go_for_its_own_bind(options):
    """Whatever the policy would give up first: the bind keeps the point that it starts from."""

    class DeepestFirst(KeepPolicy):
        def victims(self, shortfall, candidates):
            return sorted(candidates, key=lambda one: one.facts.frontier != 21)

    harness = caching(DeepestFirst(), slots=3, pages=100)
    asked = options(2, ignore_eos=True)
    result_of(harness, PROMPT, asked, **chat())
    assert harness.program.accounts.free.slots == 0
    start, _ = start_of(harness, [*PROMPT[:25], 60], asked, **chat(()))
    assert start.reused_tokens == 21


def test_shared_pages_are_held_once(options):
    harness = caching(page_tokens=1, pages=100)
    result_of(harness, PROMPT, options(2, ignore_eos=True), **chat())
    free = harness.program.accounts.free.pages
    assert free == 100 - 31, "two points and an end on one path of 31 executed tokens"
    harness.core.resources.drop_all()
    assert harness.program.accounts.free.pages == 100


def test_a_failed_engine_keeps_no_checkpoint(options):
    for step in ("plan_capture", "begin", "advance"):
        harness = caching(capture_steps=2)
        reading = harness.submit(PROMPT, options(3), **chat())
        while reading.record.capture is None:
            harness.step()
        harness.faults.arm(step, RuntimeError(f"fault in {step}"))
        harness.run_dry()
        assert isinstance(reading.response.terminal, Failed)
        assert not harness.program.contexts.checkpoints
        harness.check_released()


def test_plain_decode_looks_at_neither_catalogue_nor_policy(options, monkeypatch):
    harness = caching(pages=200)
    result_of(harness, PROMPT, options(3, ignore_eos=True), **chat())
    tracked = harness.submit([*PROMPT, 9], options(30, ignore_eos=True), **chat(()))
    while len(tracked.record.tokens) < 2:
        harness.step()
    resources, asked = harness.core.resources, []
    for owner in (Catalogue, KeepPolicy, PrefixIndex, TokenPath):
        for name in ("on_path", "deepest", "fallback", "victims", "admit", "matches", "digests"):
            if hasattr(owner, name):
                monkeypatch.setattr(owner, name, lambda *_: asked.append("asked") or [])
    known = len(resources)
    while len(tracked.record.tokens) < 28:
        harness.core.step()
    assert (asked, len(resources)) == ([], known)
    monkeypatch.undo()
    harness.run_dry()


def _any_slot():
    from ninfer_core.contract.resources import Shortfall

    return Shortfall("state_slots", 1, 0)
