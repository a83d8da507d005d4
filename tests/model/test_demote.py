"""Checkpoints on the host: the same bits afterwards, and what each replica holds meanwhile."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.contract.checkpoints import CheckpointAction, Demoted, Plan, Tier
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import NeverFits
from tests.model.checkpoint_driver import GREEDY, kept_end, prompt
from tests.model.snapshot_driver import (
    COUNT,
    DRAWN,
    KINDS,
    assert_empty,
    snapshot_drivers,
    tokens,
)

DELETE, DEMOTE = CheckpointAction.DELETE, CheckpointAction.DEMOTE
DROP_DEVICE, DROP_HOST = CheckpointAction.DROP_DEVICE, CheckpointAction.DROP_HOST


@pytest.fixture
def drivers(build_case):
    with snapshot_drivers(build_case) as build:
        yield build


def begin_demote(driver, ref):
    plan = driver.program.plan_demote(ref)
    assert isinstance(plan, Plan), plan
    return driver.program.begin(plan)


def demote(driver, ref, drop: bool = True) -> Demoted:
    result = driver.settle(begin_demote(driver, ref))
    assert isinstance(result, Demoted), result
    if drop:
        driver.drop(ref, DROP_DEVICE)
    return result


def answer(driver, prepared, source, sampling=DRAWN):
    row = driver.begin(prepared, source, sampling=sampling, lane=1)
    beginning = driver.state_of(row)
    driver.generate(row, COUNT)
    driver.release(row)
    return beginning, row.tokens, row.logprobs


def same(one, other) -> bool:
    (first, *rest), (second, *more) = one, other
    return rest == more and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(("units", "lag"), KINDS)
@pytest.mark.parametrize("length", [63, 100])
def test_a_prompt_begins_with_the_same_bits_from_either_tier(drivers, units, lag, length) -> None:
    ids = tokens(6, length)
    driver = drivers(units, lag)
    kept = kept_end(driver, prompt(ids), 2).checkpoint
    prepared = prompt([*ids, *_said(driver, kept, ids), 9, 8, 7])
    from_device = answer(driver, prepared, kept)
    other = driver.begin(prompt(tokens(1, 40)), sampling=GREEDY)
    driver.generate(other, 2)
    demoting = begin_demote(driver, kept)
    while (result := driver.step(demoting)) is None:
        driver.decode([other])
    assert isinstance(result, Demoted)
    assert result.facts.replicas == {Tier.DEVICE, Tier.HOST}
    assert same(answer(driver, prepared, kept), from_device), "with both replicas"
    driver.drop(kept, DROP_DEVICE)
    assert driver.program.facts(kept).replicas == {Tier.HOST}
    for _ in range(2):
        assert same(answer(driver, prepared, kept), from_device), "from the host"
    driver.drop(kept, DELETE)
    driver.release(other)
    assert_empty(driver)


def _said(driver, ref, ids) -> list[int]:
    """The token between the prompt and the frontier of its kept end."""
    prefix = driver.program._contexts.checkpoints.get(ref).prefix
    return prefix.token_ids[len(ids) :].tolist()


def test_each_action_frees_what_it_says(drivers) -> None:
    driver = drivers()
    program = driver.program
    ids = tokens(6, 200)
    row = driver.begin(prompt(ids, [100, 130]), sampling=GREEDY)
    made = driver.prefill_capturing(row, [100, 130])
    end = driver.keep(row).checkpoint
    first, second = made[100].checkpoint, made[130].checkpoint
    page, slot = driver.transfers.page_bytes, -(-driver.transfers.slot_bytes // 256) * 256
    assert set(program.actions(first)) == {DELETE, DEMOTE}
    before = program.capacity().available
    moved = demote(driver, second, drop=False).moved_bytes
    assert moved == driver.transfers.slot_bytes + 3 * page
    assert demote(driver, end, drop=False).moved_bytes == driver.transfers.slot_bytes + 2 * page, (
        "two full pages lay there already; the third had fewer columns"
    )
    assert set(program.actions(end)) == {DELETE, DROP_DEVICE, DROP_HOST}
    held = before.host_bytes - program.capacity().available.host_bytes
    assert held == 2 * slot + 4 * page
    for ref, action in [
        (end, DROP_DEVICE),
        (second, DROP_DEVICE),
        (first, DELETE),
        (second, DELETE),
        (end, DELETE),
    ]:
        stated, before = program.actions(ref)[action], program.capacity().available
        assert driver.drop(ref, action) == stated
        after = program.capacity().available
        freed = (
            after.state_slots - before.state_slots,
            after.pages["main"] - before.pages["main"],
            after.host_bytes - before.host_bytes,
        )
        assert freed == (stated.state_slots, stated.pages["main"], stated.host_bytes)
    assert_empty(driver)


def test_a_shared_page_stays_on_the_device_for_who_needs_it_there(drivers) -> None:
    driver = drivers()
    ids = tokens(6, 150)
    row = driver.begin(prompt(ids, [128]), sampling=GREEDY)
    stem = driver.prefill_capturing(row, [128])[128].checkpoint
    demote(driver, stem)
    total = driver.program.capacity().total.pages["main"]
    assert driver.program.capacity().available.pages["main"] == total - 3, "the sequence's"
    end = driver.keep(row).checkpoint
    assert driver.program.actions(end)[DEMOTE].pages["main"] == 3
    demote(driver, end)
    assert driver.program.capacity().available.pages["main"] == total
    expected = answer(driver, prompt([*ids[:128], 5, 5]), stem)
    driver.drop(end, DELETE)
    assert same(answer(driver, prompt([*ids[:128], 5, 5]), stem), expected)


def test_the_host_replica_goes_alone(drivers) -> None:
    driver = drivers()
    ids = tokens(6, 150)
    kept = kept_end(driver, prompt(ids)).checkpoint
    prepared = prompt([*ids, 3])
    expected = answer(driver, prepared, kept)
    demote(driver, kept, drop=False)
    driver.drop(kept, DROP_HOST)
    assert driver.host_free() == driver.program.capacity().total.host_bytes
    assert driver.program.facts(kept).replicas == {Tier.DEVICE}
    assert same(answer(driver, prepared, kept), expected)
    demote(driver, kept)
    with pytest.raises(EngineFailure, match="not among"):
        driver.program.drop(kept, DROP_HOST)
    with pytest.raises(EngineFailure, match="not among"):
        driver.program.drop(kept, DROP_DEVICE)
    assert driver.program.plan_demote(kept) == NeverFits("host_bytes", 1, 0)
    assert same(answer(driver, prepared, kept), expected)


def test_a_restore_costs_no_slot_of_the_checkpoints_own(drivers) -> None:
    """The state goes straight to the sequence; pages are loaded once for all that adopt them."""
    driver = drivers()
    ids = tokens(6, 150)
    kept = kept_end(driver, prompt(ids)).checkpoint
    demote(driver, kept)
    page, slot = driver.transfers.page_bytes, driver.transfers.slot_bytes
    tail = page * 22 // 64
    prepared = prompt([*ids, 3, 4])
    work = driver.program.restore_work(kept, prepared)
    assert (work.bytes, work.tokens) == (slot + 3 * page + tail, 2)
    assert work.seconds > 0
    before = driver.program.capacity().available
    request = driver.request(prepared, kept, lane=2)
    bound = driver.settle(driver.program.begin(driver.program.plan_bind(request)))
    assert bound.moved_bytes == work.bytes
    after = driver.program.capacity().available
    per_sequence = driver.program._stores.slots_per_sequence
    assert before.state_slots - after.state_slots == per_sequence
    assert before.pages["main"] - after.pages["main"] == 3, "two shared ones and its own tail"
    again = driver.program.restore_work(kept, prepared)
    assert again.bytes == slot + page + tail, "the full pages are here"
    assert again.seconds < work.seconds


def test_a_snapshot_and_a_checkpoint_share_what_lies_on_the_host(drivers) -> None:
    driver = drivers()
    ids = tokens(6, 140)
    root = driver.begin(prompt(ids, [128]), sampling=GREEDY)
    kept = driver.prefill_capturing(root, [128])[128].checkpoint
    driver.release(root)
    demote(driver, kept)
    prepared = prompt([*ids[:128], 1, 2, 3])
    expected = answer(driver, prepared, kept)
    row = driver.begin(prepared, kept, sampling=DRAWN, lane=2)
    driver.generate(row, 4)
    paused = driver.settle(driver.begin_pause(row))
    slot, page = driver.transfers.slot_bytes, driver.transfers.page_bytes
    assert paused.moved_bytes == slot + page, "its first two pages lay there"
    driver.program._stores.spare()
    total = driver.program.capacity().total
    assert driver.program.capacity().available.pages == total.pages
    driver.drop(kept, DELETE)
    driver.restore(row, paused.resume)
    driver.generate(row, COUNT)
    assert [row.tokens, row.logprobs] == list(expected[1:])
    driver.release(row)
    assert_empty(driver)


def test_what_broke_is_not_demoted_but_deleted(drivers) -> None:
    driver = drivers()
    ids = tokens(6, 90)
    kept = kept_end(driver, prompt(ids)).checkpoint
    driver.program._contexts.checkpoints.get(kept).own.broken = True
    assert driver.program.plan_demote(kept) == NeverFits("host_bytes", 1, 0)
    assert set(driver.program.actions(kept)) == {DELETE}
    driver.drop(kept, DELETE)


def test_without_a_host_tier_nothing_is_demoted(drivers) -> None:
    driver = drivers(host_bytes=0)
    kept = kept_end(driver, prompt(tokens(6, 90))).checkpoint
    assert driver.program.plan_demote(kept) == NeverFits("host_bytes", 1, 0)
    assert set(driver.program.actions(kept)) == {DELETE}
