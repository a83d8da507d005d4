"""Engines whose kept contexts do not fit the device: what goes to the host comes back as it was."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import contextmanager

import pytest

from ninfer_core.contract.requests import CacheRequest, GenerationOptions, PromptInput
from ninfer_core.contract.reuse import ReuseReason, Tier
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.device.errors import DeviceError
from ninfer_core.engine.catalogue import Catalogue
from ninfer_core.engine.policies_reuse import ReusePolicy
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program import host_tier
from ninfer_qwen3_5.program.rates import Rates
from tests.model import queued_mixes
from tests.model.late_copies import LateCopies
from tests.model.queued_mixes import engine_over

SIZES = {
    "max_context": 640,
    "max_concurrency": 2,
    "keep_checkpoints": True,
    "extra_state_slots": 2,
    "host_bytes": 4 << 20,
}
TALKS, TURNS = 5, 3
WAIT = 120.0
QUESTION = [(11 * place) % 290 + 3 for place in range(140)]
"""Longer than what is too short to be kept by itself."""


@contextmanager
def engine_of(model, units, **sizes):
    """``units``: eager, queued, late, or copies for queued ones over copies that are late."""
    options = {**SIZES, **sizes}
    with pytest.MonkeyPatch.context() as patch:
        # What is kept must not depend on how busy the machine is.
        patch.setattr(host_tier, "measured", lambda *_: Rates(load=1e12, save=1e12, copy=1e12))
        if units != "copies":
            with engine_over(model, units, ReusePolicy(), **options) as opened:
                yield opened
            return
        device = LateCopies(lag=20)
        late = TextModel(model.config, model.parameters, device.ops(model.ops), model.addressable)
        patch.setattr(queued_mixes, "open_device", lambda: device)
        with engine_over(late, "queued", ReusePolicy(), **options) as opened:
            yield opened


def options(talk: int) -> GenerationOptions:
    sampling = SamplingParams(temperature=0.8, seed=talk)
    return GenerationOptions(sampling=sampling, max_new_tokens=7, ignore_eos=True, logprobs=1)


def talks_through(engine, *, keys: bool = True):
    """Every conversation by its turns: prompts grow by the answers and a question."""
    r = random.Random(3)
    prompts = [[r.randrange(3, 300) for _ in range(150 + talk)] for talk in range(TALKS)]
    told = [[] for _ in prompts]
    for turn in range(TURNS):
        for talk, ids in enumerate(prompts):
            cache = CacheRequest(session_key=f"talk {talk}" if keys else None)
            prompt = PromptInput(token_ids=list(ids), cache=cache)
            result = engine.submit(prompt, options(talk)).result(WAIT)
            told[talk].append(result)
            ids += [*result.token_ids, *QUESTION[turn:]]
    return told


def said(told):
    return [[(one.token_ids, one.logprobs) for one in turns] for turns in told]


@pytest.fixture(scope="module")
def expected(build_case):
    """With room for all of them on the device."""
    model = build_case("tied").model
    with engine_over(
        model, "eager", ReusePolicy(), **{**SIZES, "extra_state_slots": 40, "host_bytes": 0}
    ) as (engine, _):
        told = talks_through(engine)
        assert engine.stats().reclaimed == 0
        return told


def assert_settled(engine, program) -> None:
    assert engine.drain(WAIT)
    program.check()


@pytest.mark.parametrize("units", ["eager", "queued", "late", "copies"])
def test_conversations_come_back_from_the_host(build_case, expected, units) -> None:
    with engine_of(build_case("tied").model, units) as (engine, program):
        told = talks_through(engine)
        stats = engine.stats()
        assert said(told) == said(expected)
        cached = [[one.usage.cached_tokens for one in turns] for turns in told]
        assert cached == [[one.usage.cached_tokens for one in turns] for turns in expected]
        later = [one.timings for turns in told for one in turns[1:]]
        assert all(timings.reuse_reason is ReuseReason.PRIVATE_CHECKPOINT for timings in later)
        from_host = [timings for timings in later if timings.reuse_tier is Tier.HOST]
        assert len(from_host) >= TALKS
        slot = program._contexts.snapshots.tier.transfers.slot_bytes
        assert all(timings.restored_bytes > slot for timings in from_host)
        tiers = Counter(timings.reuse_tier.value for timings in later)
        assert stats.reuse_tiers == tiers
        assert stats.demotions >= len(from_host)
        assert stats.demoted_bytes >= stats.demotions * slot
        assert stats.restored_bytes == sum(timings.restored_bytes for timings in later)
        assert_settled(engine, program)
    capacity = program.capacity()
    assert (capacity.available, capacity.resident) == (capacity.total, 0)


def test_a_hash_that_says_nothing_changes_nothing(build_case, expected, monkeypatch) -> None:
    real = Catalogue.__init__
    monkeypatch.setattr(Catalogue, "__init__", lambda self, digest=hash: real(self, lambda _: 7))
    with engine_of(build_case("tied").model, "copies") as (engine, program):
        told = talks_through(engine)
        assert said(told) == said(expected)
        assert engine.stats().reuse_tiers.get("host", 0) >= TALKS
        assert_settled(engine, program)


@pytest.mark.parametrize("step", ["state", "landed"])
def test_copies_that_always_fail_cost_reuse_and_nothing_else(build_case, expected, step) -> None:
    """What cannot reach the host is given up; what cannot come back is read again."""
    with engine_of(build_case("tied").model, "copies") as (engine, program):
        asked: list[str] = []

        def fault(at: str) -> None:
            asked.append(at)
            if at == step:
                raise DeviceError(f"no {at}")

        transfers = program._contexts.snapshots.tier.transfers
        transfers.faults = fault
        told = talks_through(engine)
        assert [turns[0].token_ids for turns in told] == [turns[0].token_ids for turns in expected]
        assert asked
        stats = engine.stats()
        assert (stats.demotions, stats.failed) == (0, {})
        assert stats.reclaimed > 0
        assert_settled(engine, program)
        assert program.capacity().available.host_bytes == program.capacity().total.host_bytes


def test_restores_that_always_fail_end_in_reading(build_case, expected) -> None:
    with engine_of(build_case("tied").model, "copies") as (engine, program):
        transfers = program._contexts.snapshots.tier.transfers
        load = transfers.load

        def failing(*given):
            transfer = load(*given)
            transfer.failure = DeviceError("no way back")
            return transfer

        transfers.load = failing
        told = talks_through(engine)
        stats = engine.stats()
        assert stats.failed == {}
        assert stats.reuse_tiers.get("host", 0) == 0
        assert stats.reuse.get("no_room", 0) > 0
        assert [turns[0].token_ids for turns in told] == [turns[0].token_ids for turns in expected]
        assert_settled(engine, program)


@pytest.mark.parametrize("host_bytes", [60_000, 150_000])
def test_a_host_tier_that_is_full_keeps_the_likelier(build_case, host_bytes) -> None:
    with engine_of(build_case("tied").model, "copies", host_bytes=host_bytes) as (engine, program):
        talks_through(engine)
        stats = engine.stats()
        assert stats.failed == {}
        assert stats.reclaimed > 0
        assert_settled(engine, program)


def test_an_engine_closes_while_a_checkpoint_is_on_its_way(build_case) -> None:
    with engine_of(build_case("tied").model, "copies") as (engine, program):
        handles = [
            engine.submit(PromptInput(token_ids=[3 + n + i % 40 for i in range(90)]), options(n))
            for n in range(6)
        ]
        handles[2].result(WAIT)
        engine.close()
    capacity = program.capacity()
    assert (capacity.available, capacity.resident) == (capacity.total, 0)
    program.check()


def test_without_keys_the_end_of_a_talk_is_found_by_its_tokens(build_case, expected) -> None:
    with engine_of(build_case("tied").model, "copies") as (engine, program):
        told = talks_through(engine, keys=False)
        assert said(told) == said(expected)
        assert_settled(engine, program)


def test_an_end_is_taken_over_in_place_where_nothing_fits_beside_it(build_case) -> None:
    """One lane, no host, and a single slot for what is kept: a copy of the end has no room."""
    sizes = {"max_concurrency": 1, "extra_state_slots": 1, "host_bytes": 0}
    ids = [(7 * place) % 290 + 3 for place in range(150)]
    with engine_of(build_case("tied").model, "eager", **sizes) as (engine, program):
        taken, results = [], []
        consume = program._checkpoints.consume
        program._checkpoints.consume = lambda *given: taken.append(given[0]) or consume(*given)
        for _ in range(TURNS):
            prompt = PromptInput(token_ids=list(ids), cache=CacheRequest(session_key="talk"))
            results.append(engine.submit(prompt, options(0)).result(WAIT))
            ids += [*results[-1].token_ids, *QUESTION]
        [before, last] = results[1:]
        assert len(taken) == 1
        assert last.usage.cached_tokens == before.usage.total_tokens - 1
        assert last.timings.reuse_reason is ReuseReason.PRIVATE_CHECKPOINT
        assert_settled(engine, program)
