"""Engines with few pages and a host tier: what is paused comes back by copies, bit for bit."""

from __future__ import annotations

import random
from contextlib import contextmanager

import pytest

from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.device.errors import DeviceError
from ninfer_qwen3_5.model.text import TextModel
from tests.model import queued_mixes
from tests.model.late_copies import LateCopies
from tests.model.queued_mixes import VOCAB, Wanted, assert_same, engine_over, random_mix, run_mix

SCARCE = {"max_context": 128, "max_concurrency": 4, "kv_tokens": 6 * 64}
AMPLE = {"max_context": 128, "max_concurrency": 4}


def crowd(count: int) -> list[Wanted]:
    """Requests that do not fit together; penalties count what came before a pause."""
    random_ = random.Random(5)
    mix = []
    for index in range(count):
        ids = [random_.randrange(3, VOCAB) for _ in range(random_.randint(20, 70))]
        sampling = SamplingParams(
            temperature=(index % 3) * 0.6,
            seed=(1 << 64) - 1 - index,
            frequency_penalty=0.3 * (index % 2),
            repetition_penalty=1.1,
        )
        options = GenerationOptions(
            sampling=sampling, max_new_tokens=50, ignore_eos=True, logprobs=2, prompt_logprobs=1
        )
        mix.append(Wanted(PromptInput(token_ids=ids), options))
    return mix


def assert_nothing_is_held(engine, program) -> None:
    assert engine.drain(60.0)
    capacity = program.capacity()
    assert (capacity.available, capacity.resident) == (capacity.total, 0)
    program.check()


@contextmanager
def engine_with_host(model, units, **sizes):
    """As ``engine_over``; with ``copies`` for units, queued ones over copies that are late."""
    if units != "copies":
        with engine_over(model, units, **SCARCE, **sizes) as opened:
            yield opened
        return
    device = LateCopies(lag=20)
    late = TextModel(model.config, model.parameters, device.ops(model.ops), model.addressable)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queued_mixes, "open_device", lambda: device)
        with engine_over(late, "queued", **SCARCE, **sizes) as opened:
            yield opened


@pytest.mark.parametrize(
    ("units", "host_bytes"), [("queued", 100_000), ("late", 1 << 20), ("copies", 1 << 20)]
)
def test_pauses_to_the_host_change_no_bit(build_case, units, host_bytes) -> None:
    """With little host memory some pauses are snapshots and the others replays."""
    model, mix = build_case("tied").model, crowd(8)
    with (
        engine_over(model, "eager", **AMPLE) as (oracle, _),
        engine_with_host(model, units, host_bytes=host_bytes) as (engine, program),
    ):
        expected = run_mix(oracle, mix, spread=False)
        transfers, moved = program._contexts.snapshots.tier.transfers, []
        save, load = transfers.save, transfers.load
        transfers.save = lambda *given: moved.append("save") or save(*given)
        transfers.load = lambda *given: moved.append("load") or load(*given)
        assert_same(mix, run_mix(engine, mix, spread=False), expected)
        assert moved.count("save") > 0
        assert moved.count("load") > 0
        assert_nothing_is_held(engine, program)


@pytest.mark.parametrize("units", ["late", "copies"])
def test_random_mixes_with_cancels_leave_nothing_on_the_host(build_case, units) -> None:
    model = build_case("tied").model
    with (
        engine_over(model, "eager", **AMPLE) as (oracle, _),
        engine_with_host(model, units, host_bytes=1 << 20) as (engine, program),
    ):
        mix = random_mix(random.Random(1), SCARCE["max_context"], 8)
        expected = run_mix(oracle, mix, spread=False)
        assert_same(mix, run_mix(engine, mix, spread=True), expected)
        assert_nothing_is_held(engine, program)


def test_copies_that_always_fail_leave_pauses_that_replay(build_case) -> None:
    """A pause that cannot reach the host is undone; the engine then makes room another way."""
    model, mix = build_case("tied").model, crowd(6)
    with (
        engine_over(model, "eager", **AMPLE) as (oracle, _),
        engine_with_host(model, "queued", host_bytes=1 << 20) as (engine, program),
    ):
        expected = run_mix(oracle, mix, spread=False)

        asked: list[str] = []

        def fault(step: str) -> None:
            asked.append(step)
            raise DeviceError(f"no {step}")

        program._contexts.snapshots.tier.transfers.faults = fault
        assert_same(mix, run_mix(engine, mix, spread=False), expected)
        assert asked
        assert_nothing_is_held(engine, program)


def test_snapshots_that_never_come_back_are_replayed(build_case) -> None:
    """Copies to the host land and those from there do not; nobody fails for it."""
    model, mix = build_case("tied").model, crowd(6)
    with (
        engine_over(model, "eager", **AMPLE) as (oracle, _),
        engine_with_host(model, "eager", host_bytes=1 << 20) as (engine, program),
    ):
        expected = run_mix(oracle, mix, spread=False)
        transfers = program._contexts.snapshots.tier.transfers
        load = transfers.load

        def lost(*given):
            transfer = load(*given)
            transfer.failure = DeviceError("lost on the way")
            return transfer

        transfers.load = lost
        assert_same(mix, run_mix(engine, mix, spread=False), expected)
        stats = engine.stats()
        assert (stats.restores, stats.replays > 0) == (0, True)
        assert_nothing_is_held(engine, program)
