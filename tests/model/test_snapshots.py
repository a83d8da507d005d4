"""Sequences that wait on the host: the same bits afterwards, and nothing lost on any way out."""

from __future__ import annotations

import dataclasses
import random
from contextlib import contextmanager

import pytest

from ninfer_core.contract.checkpoints import Aborted, CheckpointAction, Paused, ResumeKind
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import NeverFits, Shortfall
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.contract.units import UnitKind
from ninfer_core.device.errors import DeviceError
from tests.model.checkpoint_driver import GREEDY, prompt
from tests.model.snapshot_driver import SnapshotDriver, snapshot_driver

DRAWN = SamplingParams(
    temperature=0.9, top_k=40, top_p=0.95, seed=11, repetition_penalty=1.2, frequency_penalty=0.1
)
KINDS = [("eager", None), ("queued", None), ("queued", 3)]
COUNT = 30


def tokens(seed: int, count: int) -> list[int]:
    r = random.Random(seed)
    return [r.randrange(300) for _ in range(count)]


@pytest.fixture
def drivers(build_case):
    made: list[SnapshotDriver] = []

    def build(units: str = "eager", lag: int | None = None, case: str = "tied", **sizes: int):
        made.append(snapshot_driver(build_case(case).model, units, lag=lag, **sizes))
        return made[-1]

    yield build
    for driver in made:
        driver.program.close()
        assert_empty(driver)


def assert_empty(driver: SnapshotDriver) -> None:
    capacity = driver.program.capacity()
    assert (capacity.available, capacity.resident) == (capacity.total, 0)
    driver.program.check()
    stores = driver.program._stores
    assert stores.context.idle
    assert sorted(stores._free_rows) == list(range(stores.rows))


def undisturbed(driver: SnapshotDriver, ids: list[int], sampling=DRAWN, count: int = COUNT):
    row = driver.begin(prompt(ids), sampling=sampling)
    driver.generate(row, count)
    driver.release(row)
    return row.tokens, row.logprobs


def turn(driver: SnapshotDriver, row) -> None:
    """The next unit of one sequence."""
    if driver.program.unit_need(row.handle).kind in (UnitKind.PREFILL, UnitKind.REPLAY):
        driver.chunk(row)
    else:
        driver.decode([row])


@pytest.mark.parametrize(("units", "lag"), KINDS)
def test_random_pauses_change_no_bit_of_anyone(drivers, units, lag) -> None:
    """Three sequences take turns; any of them is paused anywhere, the others go on meanwhile."""
    r = random.Random(5)
    prompts = [tokens(seed, length) for seed, length in enumerate((150, 64, 9))]
    samplings = [DRAWN, GREEDY, dataclasses.replace(DRAWN, seed=7)]
    oracle = drivers("eager", prefill_chunk=32)
    expected = [undisturbed(oracle, *pair) for pair in zip(prompts, samplings, strict=True)]
    driver = drivers(units, lag, prefill_chunk=32)
    rows = [
        driver.begin(prompt(ids), sampling=sampling, lane=lane)
        for lane, (ids, sampling) in enumerate(zip(prompts, samplings, strict=True))
    ]
    phases = set()
    while any(len(row.tokens) < COUNT for row in rows):
        going = [row for row in rows if len(row.tokens) < COUNT]
        if r.random() < 0.3:
            victim = going.pop(r.randrange(len(going)))
            phases.add(driver.program.unit_need(victim.handle).kind)
            resume = while_others_run(driver, r, going, driver.begin_pause(victim)).resume
            for row in going:
                if len(row.tokens) < COUNT and r.random() < 0.5:
                    turn(driver, row)
            opened = driver.begin_resume(victim, resume)
            driver.bound(victim, while_others_run(driver, r, going, opened))
        elif r.random() < 0.5:
            turn(driver, r.choice(going))
        else:
            decode_together(driver, going)
    assert phases == {UnitKind.PREFILL, UnitKind.DECODE}
    assert [(row.tokens, row.logprobs) for row in rows] == expected
    for row in rows:
        driver.release(row)
    assert_empty(driver)


def while_others_run(driver, r, others, transaction):
    result = driver.step(transaction)
    while result is None:
        going = [row for row in others if len(row.tokens) < COUNT]
        if going:
            turn(driver, r.choice(going))
        result = driver.step(transaction)
    return result


def decode_together(driver, rows) -> None:
    ready = [row for row in rows if driver.program.unit_need(row.handle).kind is UnitKind.DECODE]
    if ready:
        driver.decode(ready)


@pytest.mark.parametrize("lag", [None, 2])
def test_a_pause_frees_the_device_and_says_what_it_holds(drivers, lag) -> None:
    driver = drivers("eager", lag)
    row = driver.begin(prompt(tokens(1, 100)), sampling=DRAWN)
    driver.generate(row, 10)
    total = driver.program.capacity().total
    result = driver.settle(driver.begin_pause(row))
    assert isinstance(result, Paused)
    page, slot = driver.transfers.page_bytes, driver.transfers.slot_bytes
    assert result.moved_bytes == slot + 2 * page
    assert result.resume.kind is ResumeKind.SNAPSHOT
    assert (result.resume.frontier, result.resume.ledger) == (109, 110)
    held = result.resume.holds
    assert (held.host_bytes, held.state_slots) == (-(-slot // 256) * 256 + 2 * page, 0)
    available = driver.program.capacity().available
    assert (available.pages, available.state_slots) == (total.pages, total.state_slots)
    assert driver.host_free() == total.host_bytes - held.host_bytes
    with pytest.raises(EngineFailure, match="stale"):
        driver.program.unit_need(row.handle)
    driver.program.discard(result.resume)
    assert_empty(driver)
    with pytest.raises(EngineFailure, match="stale"):
        driver.program.discard(result.resume)


def test_a_resume_moves_all_back_and_frees_the_host(drivers) -> None:
    driver = drivers("eager", kv_tokens=4 * 64, max_context=256)
    row = driver.begin(prompt(tokens(1, 63)), sampling=DRAWN)
    driver.generate(row, 2)
    resume = driver.snapshot(row)
    result = driver.settle(driver.begin_resume(row, resume))
    page, slot = driver.transfers.page_bytes, driver.transfers.slot_bytes
    assert (result.moved_bytes, result.reused_tokens) == (slot + page, 64)
    assert driver.host_free() == driver.program.capacity().total.host_bytes
    assert driver.program.capacity().available.pages["main"] == 2, "room for the first new unit"
    with pytest.raises(EngineFailure, match="stale"):
        driver.program.plan_bind(dataclasses.replace(row.request, source=resume))
    driver.release(driver.bound(row, result))


@pytest.mark.parametrize(("units", "lag"), KINDS)
def test_a_revoked_snapshot_is_a_replay_of_the_same(drivers, units, lag) -> None:
    ids = tokens(3, 90)
    expected = undisturbed(drivers("eager", prefill_chunk=32), ids)
    driver = drivers(units, lag, prefill_chunk=32)
    row = driver.begin(prompt(ids), sampling=DRAWN)
    driver.generate(row, 12)
    snapshot = driver.snapshot(row)
    replay = driver.program.revoke(snapshot)
    assert replay.kind is ResumeKind.REPLAY
    assert (replay.frontier, replay.ledger) == (snapshot.frontier, snapshot.ledger)
    assert_empty(driver)
    assert driver.program.revoke(replay) == replay
    driver.restore(row, replay)
    driver.chunk(row)
    # In the middle of a replay it is paused again, now to the host.
    driver.restore(row, driver.snapshot(row))
    assert driver.program.unit_need(row.handle).kind is UnitKind.REPLAY
    driver.generate(row, COUNT)
    assert (row.tokens, row.logprobs) == expected


@pytest.mark.parametrize("when", ["planned", "flying", "landed"])
def test_a_cancelled_pause_leaves_the_sequence_where_it_was(drivers, when) -> None:
    ids = tokens(3, 90)
    expected = undisturbed(drivers(), ids)
    driver = drivers("queued", 4)
    row = driver.begin(prompt(ids), sampling=DRAWN)
    driver.generate(row, 5)
    before = driver.program.capacity()
    pause = driver.begin_pause(row)
    if when != "planned":
        assert driver.step(pause) is None
        assert driver.host_free() < before.available.host_bytes, "charged from the start"
    if when == "landed":
        for lane in driver.transfers._out.lane, driver.transfers._in.lane:
            lane.synchronize()
    pause.cancel()
    if when == "flying":
        assert driver.step(pause) is None, "what is on its way is waited for"
    result = driver.settle(pause)
    assert isinstance(result, Aborted)
    assert "cancelled" in result.reason
    assert driver.program.capacity() == before
    with pytest.raises(EngineFailure, match="past its result"):
        pause.advance()
    driver.generate(row, COUNT)
    assert (row.tokens, row.logprobs) == expected


@pytest.mark.parametrize("when", ["planned", "flying"])
def test_a_cancelled_resume_leaves_the_snapshot_whole(drivers, when) -> None:
    ids = tokens(3, 90)
    expected = undisturbed(drivers(), ids)
    driver = drivers("queued", 4)
    row = driver.begin(prompt(ids), sampling=DRAWN)
    driver.generate(row, 5)
    resume = driver.snapshot(row)
    before = driver.program.capacity()
    opened = driver.begin_resume(row, resume)
    if when == "flying":
        assert driver.step(opened) is None
    opened.cancel()
    result = driver.settle(opened)
    assert isinstance(result, Aborted)
    assert driver.program.capacity() == before
    driver.restore(row, resume)
    driver.generate(row, COUNT)
    assert (row.tokens, row.logprobs) == expected


@pytest.mark.parametrize("lag", [None, 3])
@pytest.mark.parametrize("step", ["state", "pages", "landed"])
def test_a_copy_that_fails_is_undone_and_may_be_tried_again(drivers, lag, step) -> None:
    ids = tokens(3, 90)
    expected = undisturbed(drivers(), ids)
    driver = drivers("eager", lag)
    row = driver.begin(prompt(ids), sampling=DRAWN)
    driver.generate(row, 5)
    before = driver.program.capacity()
    with failing(driver, step):
        result = driver.settle(driver.begin_pause(row))
    assert isinstance(result, Aborted)
    assert f"no {step}" in result.reason
    assert driver.program.capacity() == before
    driver.decode([row])
    resume = driver.snapshot(row)
    before = driver.program.capacity()
    with failing(driver, step):
        result = driver.settle(driver.begin_resume(row, resume))
    assert isinstance(result, Aborted)
    assert driver.program.capacity() == before
    driver.restore(row, resume)
    driver.generate(row, COUNT)
    assert (row.tokens, row.logprobs) == expected


@contextmanager
def failing(driver, step):
    def fault(at: str) -> None:
        if at == step:
            raise DeviceError(f"no {at}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.transfers, "faults", fault)
        yield


def test_a_full_host_refuses_and_holds_nothing(drivers) -> None:
    probe = drivers()
    slot, page = probe.transfers.slot_bytes, probe.transfers.page_bytes
    rounded = -(-slot // 256) * 256
    capacity = rounded + 2 * page + 256
    driver = drivers(host_bytes=capacity)
    first = driver.begin(prompt(tokens(1, 60)), lane=0)
    second = driver.begin(prompt(tokens(2, 120)), lane=1)
    third = driver.begin(prompt(tokens(4, 190)), lane=2)
    for row in (first, second, third):
        driver.generate(row, 2)
    driver.snapshot(first)
    before = driver.program.capacity()
    refusal = driver.program.plan_pause(second.handle, ResumeKind.SNAPSHOT)
    assert refusal == Shortfall("host_bytes", rounded + 2 * page, page + 256)
    refusal = driver.program.plan_pause(third.handle, ResumeKind.SNAPSHOT)
    assert refusal == NeverFits("host_bytes", rounded + 3 * page, capacity)
    assert driver.program.capacity() == before
    driver.program.check()


def test_room_that_goes_between_plan_and_start_aborts(drivers) -> None:
    driver = drivers()
    row = driver.begin(prompt(tokens(1, 60)), sampling=GREEDY)
    driver.generate(row, 2)
    pause = driver.begin_pause(row)
    arena = driver.program._stores.context.arena
    ballast = arena.allocate(arena.largest_free)
    result = pause.advance()
    arena.free(ballast)
    assert isinstance(result, Aborted)
    assert "host_bytes" in result.reason
    resume = driver.snapshot(row)
    opened = driver.begin_resume(row, resume)
    slots = driver.program._stores.slots.pool
    taken = slots.available
    slots.reserve(taken)
    result = opened.advance()
    slots.unreserve(taken)
    assert isinstance(result, Aborted)
    assert "state_slots" in result.reason
    driver.restore(row, resume)


def test_no_page_at_all_is_a_snapshot_too(drivers) -> None:
    """A sequence that has not run yet."""
    ids = tokens(3, 40)
    expected = undisturbed(drivers(), ids)
    driver = drivers("queued", 2)
    row = driver.begin(prompt(ids), sampling=DRAWN)
    driver.restore(row, driver.snapshot(row))
    driver.generate(row, COUNT)
    assert (row.tokens, row.logprobs) == expected


@pytest.mark.parametrize(("units", "lag"), KINDS)
def test_pages_that_a_checkpoint_shares_are_saved_once_and_stay_on_the_device(
    drivers, units, lag
) -> None:
    ids = tokens(6, 140)
    suffixes = [tokens(7, 20), tokens(8, 30)]
    oracle = drivers("eager")
    root = oracle.begin(prompt(ids, [128]), sampling=DRAWN)
    base = oracle.prefill_capturing(root, [128])[128].checkpoint
    prompts = [prompt(ids[:128] + suffix) for suffix in suffixes]
    expected = []
    for prepared in prompts:
        row = oracle.begin(prepared, base, sampling=DRAWN)
        oracle.generate(row, COUNT)
        oracle.release(row)
        expected.append((row.tokens, row.logprobs))
    driver = drivers(units, lag)
    root = driver.begin(prompt(ids, [128]), sampling=DRAWN)
    kept = driver.prefill_capturing(root, [128])[128].checkpoint
    driver.release(root)
    rows = [
        driver.begin(prepared, kept, sampling=DRAWN, lane=lane)
        for lane, prepared in enumerate(prompts)
    ]
    for row in rows:
        driver.generate(row, 4)
    slot, page = driver.transfers.slot_bytes, driver.transfers.page_bytes
    first = driver.settle(driver.begin_pause(rows[0]))
    second = driver.settle(driver.begin_pause(rows[1]))
    assert first.moved_bytes == slot + 3 * page
    assert second.moved_bytes == slot + page, "the shared prefix lies there already"
    image = -(-slot // 256) * 256
    assert first.resume.holds.host_bytes == image + page, "what a revoke would free"
    assert second.resume.holds.host_bytes == image + page
    total = driver.program.capacity().total.pages["main"]
    assert driver.program.capacity().available.pages["main"] == total - 2, "the checkpoint's"
    driver.program.drop(kept, CheckpointAction.DELETE)
    driver.program.check()
    # Nobody else holds them now; whoever needs room gets it.
    driver.program._stores.spare()
    assert driver.program.capacity().available.pages["main"] == total
    for row, paused in zip(rows, (first, second), strict=True):
        driver.restore(row, paused.resume, lane=rows.index(row))
    assert driver.host_free() == driver.program.capacity().total.host_bytes
    for row in rows:
        driver.generate(row, COUNT)
    assert [(row.tokens, row.logprobs) for row in rows] == expected
    for row in rows:
        driver.release(row)
    assert_empty(driver)


def test_what_only_snapshots_hold_on_the_device_makes_way(drivers) -> None:
    """The pool is full of what was shared with a checkpoint that is gone."""
    driver = drivers(max_context=256, kv_tokens=5 * 64, max_concurrency=2)
    ids = tokens(6, 130)
    row = driver.begin(prompt(ids, [128]), sampling=GREEDY)
    kept = driver.prefill_capturing(row, [128])[128].checkpoint
    driver.generate(row, 3)
    resume = driver.snapshot(row)
    driver.program.drop(kept, CheckpointAction.DELETE)
    assert driver.program.capacity().available.pages["main"] == 3
    other = driver.begin(prompt(tokens(9, 250)), sampling=GREEDY, lane=1)
    driver.generate(other, 3)
    assert driver.program.capacity().available.pages["main"] == 1
    driver.release(other)
    driver.restore(row, resume)
    driver.generate(row, 6)


def test_a_prefix_that_two_snapshots_share_stays_on_the_host_for_the_second(drivers) -> None:
    driver = drivers()
    ids = tokens(6, 140)
    root = driver.begin(prompt(ids, [128]), sampling=GREEDY)
    kept = driver.prefill_capturing(root, [128])[128].checkpoint
    driver.release(root)
    rows = [driver.begin(prompt([*ids, n]), kept, sampling=GREEDY, lane=n) for n in range(2)]
    for row in rows:
        driver.generate(row, 2)
    first, second = (driver.snapshot(row) for row in rows)
    driver.program.drop(kept, CheckpointAction.DELETE)
    driver.release(driver.restore(rows[0], first))
    driver.snapshots.trim()
    capacity = driver.program.capacity()
    assert capacity.available.pages == capacity.total.pages
    driver.restore(rows[1], second)
    driver.generate(rows[1], 5)


def test_pages_that_went_between_plan_and_start_abort_a_resume(drivers) -> None:
    """Its own shared pages on the device are not counted as there and given up at once."""
    driver = drivers(max_context=256, kv_tokens=6 * 64, max_concurrency=2)
    row = driver.begin(prompt(tokens(6, 130), [128]), sampling=GREEDY)
    kept = driver.prefill_capturing(row, [128])[128].checkpoint
    driver.generate(row, 3)
    resume = driver.snapshot(row)
    driver.program.drop(kept, CheckpointAction.DELETE)
    other = driver.begin(prompt(tokens(9, 190)), sampling=GREEDY, lane=1)
    driver.generate(other, 2)
    opened = driver.begin_resume(row, resume)
    driver.generate(other, 4)
    result = driver.step(opened)
    assert isinstance(result, Aborted)
    assert "main" in result.reason
    driver.release(other)
    driver.restore(row, resume)
    driver.generate(row, 5)


def test_a_sequence_comes_back_in_another_row(drivers) -> None:
    """Settings and counts are kept by row, and somebody else took the old one."""
    ids = tokens(3, 70)
    expected = undisturbed(drivers(), ids)
    driver = drivers("queued")
    row = driver.begin(prompt(ids), sampling=DRAWN)
    driver.generate(row, 6)
    before = driver.record(row).row
    resume = driver.snapshot(row)
    other = driver.begin(prompt(tokens(4, 20)), sampling=GREEDY, lane=1)
    driver.generate(other, 4)
    assert driver.record(other).row == before
    driver.restore(row, resume, lane=2)
    assert driver.record(row).row != before
    driver.generate(row, COUNT)
    assert (row.tokens, row.logprobs) == expected


@pytest.mark.parametrize("way", ["pause", "resume"])
def test_a_program_closes_in_the_middle_of_a_copy(drivers, way) -> None:
    driver = drivers("queued", 0)
    row = driver.begin(prompt(tokens(1, 70)), sampling=GREEDY)
    driver.generate(row, 3)
    opened = driver.begin_pause(row)
    assert opened.advance() is None
    if way == "resume":
        driver.transfers._out.lane.synchronize()
        opened = driver.begin_resume(row, opened.advance().resume)
        assert opened.advance() is None
    else:
        with pytest.raises(EngineFailure, match="another one was open"):
            driver.program.begin(driver.program.plan_pause(row.handle, ResumeKind.REPLAY))
    driver.program.close()
    assert_empty(driver)


def test_without_host_bytes_no_snapshot_is_made(drivers) -> None:
    driver = drivers(host_bytes=0)
    row = driver.begin(prompt(tokens(1, 70)), sampling=GREEDY)
    driver.generate(row, 3)
    assert driver.program.plan_pause(row.handle, ResumeKind.SNAPSHOT) == NeverFits(
        "host_bytes", 1, 0
    )
