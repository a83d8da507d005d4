"""Short of room: optional cache first, then younger Snapshots, then younger residents."""

from __future__ import annotations

import pytest

from ninfer_core.contract.checkpoints import PlanKind, ResumeKind
from ninfer_core.contract.errors import Infeasible
from ninfer_core.engine.states import RequestState
from ninfer_core.testing.engine_harness import EngineHarness
from ninfer_core.testing.fake_accounts import Amount
from ninfer_core.testing.fake_instance import KeepPolicy
from ninfer_core.testing.fake_law import EMPTY_STATE, execute, next_token
from ninfer_core.testing.fake_transactions import FakeConfig

REPLAY = frozenset({ResumeKind.REPLAY})


def law(prompt, seed, count):
    state, tokens = execute(EMPTY_STATE, prompt), []
    for _ in range(count):
        tokens.append(next_token(state, seed, 64))
        state = execute(state, tokens[-1:])
    return tuple(tokens)


def results(harness):
    harness.run_dry()
    return [tracked.response.terminal.result for tracked in harness.requests]


def states_seen(harness, ticket):
    seen = []
    harness.core.transitions.observers.append(
        lambda record, _, new: seen.append(new) if record.ticket == ticket else None
    )
    return seen


@pytest.mark.parametrize(
    "config",
    [
        FakeConfig(pages=8, pause_kinds=REPLAY),
        FakeConfig(pages=8, host=50),
        FakeConfig(pages=8, snapshot_on_device=True),
        FakeConfig(pages=8, host=50, bind_steps=3, pause_steps=3),
    ],
    ids=["replay", "snapshot", "revoked", "slow"],
)
def test_pause_and_resume_leave_no_trace_in_the_output(options, config):
    harness = EngineHarness(config)
    for seed in range(2):
        harness.submit([5 + seed] * 4, options(24, seed=seed, ignore_eos=True))
    old, young = results(harness)
    assert old.token_ids == law([5] * 4, 0, 24)
    assert young.token_ids == law([6] * 4, 1, 24)
    assert (old.timings.pauses, young.timings.pauses > 0) == (0, True)
    watch = young.timings
    assert watch.replays + watch.restores == watch.pauses
    tracked = harness.requests[1]
    harness.consume(tracked)
    starts = [e for e in tracked.events if type(e).__name__ == "GenerationStart"]
    assert len(starts) == 1
    harness.check_released()


@pytest.mark.parametrize(
    ("config", "replays"),
    [(FakeConfig(pages=8, pause_kinds=REPLAY), True), (FakeConfig(pages=8, host=50), False)],
)
def test_a_snapshot_is_preferred_and_not_executed_again(options, config, replays):
    harness = EngineHarness(config)
    for seed in range(2):
        harness.submit([5 + seed] * 4, options(24, seed=seed, ignore_eos=True))
    results(harness)
    assert (harness.program.journal.replayed_tokens > 0) == replays
    assert harness.program.journal.prefilled_tokens == 8


def test_a_younger_snapshot_on_the_short_axis_is_revoked_for_an_older_request(options):
    harness = EngineHarness(FakeConfig(pages=8, snapshot_on_device=True))
    for seed in range(2):
        harness.submit([5 + seed] * 4, options(24, seed=seed, ignore_eos=True))
    _, young = results(harness)
    assert young.timings.replays > 0


def test_kept_ends_go_before_anybody_is_paused(options):
    harness = EngineHarness(FakeConfig(pages=10, slots=4), policy=KeepPolicy())
    harness.submit([9] * 8, options(8, ignore_eos=True))
    harness.run_dry()
    assert len(harness.core.resources) == 1
    for seed in range(2):
        harness.submit([5 + seed] * 4, options(12, seed=seed, ignore_eos=True))
    _, old, young = results(harness)
    assert (old.timings.pauses, young.timings.pauses) == (0, 0)
    assert len(old.token_ids) == len(young.token_ids) == 12


def test_only_the_younger_make_way(options):
    harness = EngineHarness(FakeConfig(page_tokens=1, pages=16, pause_kinds=REPLAY))
    for seed in range(3):
        harness.submit([5 + seed] * 2, options(9, seed=seed, ignore_eos=True))
    paused = []
    harness.core.transitions.observers.append(
        lambda record, _, new: paused.append(record.ticket) if new is RequestState.PAUSING else None
    )
    results(harness)
    assert 1 not in paused
    assert 3 in paused


def test_a_protected_resume_is_the_only_one_until_it_makes_progress(options):
    harness = EngineHarness(FakeConfig(page_tokens=1, pages=20, pause_kinds=REPLAY))
    for seed in range(3):
        harness.submit([5 + seed] * 3, options(14, seed=seed, ignore_eos=True))
    protected = set()
    while harness.step().value != "idle":
        one = harness.core.scheduler.protected
        replaying = [t.record for t in harness.requests if t.record.state is RequestState.REPLAY]
        assert len(replaying) <= 1
        assert all(record is one for record in replaying)
        if one is not None:
            protected.add(one.ticket)
    assert protected


def test_an_older_resident_that_lacks_room_goes_before_a_resume(options):
    """The pages that a pause frees go to whom it was for, not back to the paused one."""
    harness = EngineHarness(FakeConfig(page_tokens=1, pages=14, pause_kinds=REPLAY))
    harness.submit([5] * 2, options(10, seed=1, ignore_eos=True))
    harness.submit([6] * 2, options(10, seed=2, ignore_eos=True))
    old, young = results(harness)
    assert old.timings.pauses == 0
    assert young.timings.pauses == 1


def test_an_undone_pause_puts_the_victim_back_where_it_was(options):
    harness = EngineHarness(FakeConfig(pages=8, host=50, pause_steps=2))
    for seed in range(2):
        harness.submit([5 + seed] * 4, options(20, seed=seed, ignore_eos=True))
    harness.program.contexts.abort_next[PlanKind.PAUSE] = 2
    old, young = results(harness)
    assert (old.token_ids, young.token_ids) == (law([5] * 4, 0, 20), law([6] * 4, 1, 20))
    assert harness.edges[RequestState.PAUSING, RequestState.DECODE_READY] == 2


def test_a_bind_that_fails_is_tried_again_and_given_up_in_the_end(options):
    harness = EngineHarness()
    harness.program.contexts.abort_next[PlanKind.BIND] = 2
    good = harness.submit([5], options(2, ignore_eos=True))
    harness.run_dry()
    assert good.response.terminal.result.token_ids == law([5], 1, 2)
    harness.program.contexts.abort_next[PlanKind.BIND] = 3
    bad = harness.submit([5], options(2))
    harness.run_dry()
    assert isinstance(bad.response.terminal.error, Infeasible)
    assert "the copy failed" in str(bad.response.terminal.error)


def test_a_failed_resume_leaves_the_paused_request_paused(options):
    harness = EngineHarness(FakeConfig(pages=8, pause_kinds=REPLAY))
    for seed in range(2):
        harness.submit([5 + seed] * 4, options(20, seed=seed, ignore_eos=True))
    harness.program.contexts.abort_next[PlanKind.BIND] = 0
    while not harness.core.scheduler.paused:
        harness.step()
    harness.program.contexts.abort_next[PlanKind.BIND] = 2
    old, young = results(harness)
    assert harness.edges[RequestState.MATERIALIZING, RequestState.PAUSED] == 2
    assert (old.token_ids, young.token_ids) == (law([5] * 4, 0, 20), law([6] * 4, 1, 20))


def test_a_paused_request_alone_that_never_fits_again_is_infeasible(options):
    harness = EngineHarness(FakeConfig(pages=8, pause_kinds=REPLAY))
    for seed in range(2):
        harness.submit([5 + seed] * 4, options(20, seed=seed, ignore_eos=True))
    while not harness.core.scheduler.paused:
        harness.step()
    harness.cancel(harness.requests[0])
    harness.program.accounts.take("ballast", Amount(pages=harness.program.accounts.free.pages))
    harness.step()
    harness.program.accounts.take("ballast", Amount(pages=harness.program.accounts.free.pages))
    harness.core.events.changed()
    harness.run_dry()
    terminal = harness.requests[1].response.terminal
    assert isinstance(terminal.error, Infeasible)
    assert list(terminal.partial.token_ids) == harness.requests[1].record.tokens


def test_a_program_that_reserves_nothing_for_a_resume_costs_time_but_nobodys_output(options):
    config = FakeConfig(page_tokens=1, pages=20, pause_kinds=REPLAY, reserve_resume=False)
    harness = EngineHarness(config)
    for seed in range(3):
        harness.submit([5 + seed] * 3, options(14, seed=seed, ignore_eos=True))
    for seed, result in enumerate(results(harness)):
        assert result.token_ids == law([5 + seed] * 3, seed, 14)


def test_an_older_paused_request_takes_room_back_from_younger_residents(options):
    config = FakeConfig(page_tokens=1, pages=24, slots=2, pause_kinds=REPLAY)
    harness = EngineHarness(config)
    for seed in range(2):
        harness.submit([5 + seed] * 4, options(16, seed=seed, ignore_eos=True))
    while not harness.core.scheduler.paused:
        harness.step()
    harness.submit([9] * 2, options(40, seed=2, ignore_eos=True))
    _, second, third = (tracked.record for tracked in harness.requests)
    while not third.started:
        harness.step()
    assert second.state is RequestState.PAUSED
    harness.cancel(harness.requests[0])
    seen = states_seen(harness, 3)
    while second.state is RequestState.PAUSED:
        harness.step()
    harness.run_dry()
    assert second.tokens == list(law([6] * 4, 1, 16))
    assert RequestState.PAUSING in seen
    harness.check_released()


def test_a_head_alone_that_finds_no_room_is_infeasible_not_a_hang(options):
    harness = EngineHarness()
    harness.program.accounts.take("ballast", Amount(slots=8))
    tracked = harness.submit([5], options(2))
    harness.run_dry()
    assert isinstance(tracked.response.terminal.error, Infeasible)
    assert "1 state_slots, 0 are free" in str(tracked.response.terminal.error)
