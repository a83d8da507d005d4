"""Faults that people met in the schedulers and caches of comparable engines, on virtual time."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from ninfer_core.contract.events import Finished
from ninfer_core.contract.requests import CacheRequest, ChatOptions, GenerationOptions
from ninfer_core.contract.resources import ProgramLimits
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.contract.units import UnitKind
from ninfer_core.engine.policies_reuse import ReusePolicy
from ninfer_core.testing.engine_harness import EngineHarness, Tracked
from ninfer_core.testing.fake_transactions import FakeConfig

CHUNK = 32


def greedy(tokens: int) -> GenerationOptions:
    sampling = SamplingParams(temperature=0.0)
    return GenerationOptions(sampling=sampling, max_new_tokens=tokens, ignore_eos=True)


def noted_units(program) -> list[tuple[UnitKind, int, int]]:
    """Kind, rows and tokens of every unit, in the order of their launch."""
    units: list[tuple[UnitKind, int, int]] = []
    prefill, decode = program.launch_prefill, program.launch_decode

    def launch_prefill(row):
        units.append((UnitKind.PREFILL, 1, row.permit.need.tokens))
        return prefill(row)

    def launch_decode(rows, *, ahead_of=None):
        units.append((UnitKind.DECODE, len(rows), len(rows)))
        return decode(rows, ahead_of=ahead_of)

    program.launch_prefill, program.launch_decode = launch_prefill, launch_decode
    return units


@pytest.mark.parametrize("rounds_ahead", [0, 1])
@pytest.mark.parametrize("policy", [None, ReusePolicy()], ids=["off", "reuse"])
def test_long_prompts_of_others_never_hold_a_stream_up(rounds_ahead, policy) -> None:
    """vllm-project/vllm#54919: streams stood still for minutes while others' prompts were read.

    One stream of 2,000 tokens and two cold prompts behind it, scaled to a third: between two of its
    rounds at most one chunk is run, whoever it is of, so that a gap is a chunk and a round.
    """
    limits = ProgramLimits(max_context=2600, max_concurrency=3, prefill_chunk=CHUNK, vocab_rows=64)
    config = FakeConfig(pages=3000, slots=16, captures=policy is not None)
    harness = EngineHarness(config, limits, policy, rounds_ahead=rounds_ahead)
    units = noted_units(harness.program)
    stream = harness.submit([5, 6, 7], greedy(660))
    while len(stream.record.tokens) < 20:
        harness.step()
    before = len(units)
    cold = [harness.submit([3 + (n * k) % 50 for n in range(2300)], greedy(4)) for k in (1, 2)]
    while not all(one.response.ends for one in cold):
        assert not stream.response.ends
        harness.step()
    harness.cancel(stream)
    harness.run_dry()
    kinds = [kind for kind, _, _ in units[before:]]
    chunks = [tokens for kind, _, tokens in units[before:] if kind is UnitKind.PREFILL]
    pairs = list(pairwise(kinds))
    assert (UnitKind.PREFILL, UnitKind.PREFILL) not in pairs
    assert max(chunks) == CHUNK
    assert sum(chunks) == 2 * 2300


def test_a_tiny_cache_loses_nothing_in_5000_requests() -> None:
    """sgl-project/sglang#12007, #28312: after hours of mixed traffic the cache's books were off.

    Prompts share beginnings at random, some are given up at random, and the cache has room for a
    few. Now and then everything comes to its end: then nothing is held but what the catalogue knows
    of, and the Program's own books are right.
    """
    rng = random.Random(29)
    limits = ProgramLimits(max_context=64, max_concurrency=3, prefill_chunk=16, vocab_rows=64)
    config = FakeConfig(pages=48, slots=6, captures=True)
    harness = EngineHarness(config, limits, ReusePolicy(least_gain=4), max_pending=3)
    stems = [[rng.randrange(3, 60) for _ in range(24)] for _ in range(6)]
    ends: Counter[str] = Counter()
    for number in range(5000):
        while harness.gate.count == harness.gate.limit:
            harness.core.step()
            _consume(harness, ends)
        tracked = _ask(harness, rng, rng.choice(stems)[: rng.choice([8, 16, 24])])
        if rng.random() < 0.1:
            harness.core.step()
            harness.cancel(tracked)
        if number % 100 == 99:
            _check_books(harness, ends)
    stats = harness.core.stats()
    assert stats.submitted == sum(ends.values()) == 5000
    assert stats.reclaimed > 500
    assert stats.cached_tokens > stats.prompt_tokens // 20
    assert ends["cancelled"] > 100
    harness.core.resources.drop_all()
    assert harness.program.capacity().available == harness.program.capacity().total


def _ask(harness: EngineHarness, rng: random.Random, stem: list[int]) -> Tracked:
    prompt = [*stem, *(rng.randrange(3, 60) for _ in range(rng.randint(1, 6)))]
    tracked = harness.submit(
        prompt,
        greedy(rng.randint(1, 3)),
        cache=CacheRequest(session_key=f"talk {rng.randrange(9)}"),
        chat=ChatOptions(template_kwargs={"points": ((len(stem), "user_message"),)}),
    )
    assert tracked is not None
    return tracked


def _consume(harness: EngineHarness, ends: Counter[str]) -> None:
    """Read the answers that are there, and forget their requests."""
    for tracked in [one for one in harness.requests if one.response.ends]:
        harness.consume(tracked)
        harness.requests.remove(tracked)
        end = tracked.response.terminal
        assert isinstance(end, Finished), end
        ends[end.result.finish_reason.value] += 1


def _check_books(harness: EngineHarness, ends: Counter[str]) -> None:
    while harness.core.intake.open:
        harness.core.step()
        reason = harness.lifecycle.availability().reason
        assert reason is None, reason
    harness.core.step()
    _consume(harness, ends)
    assert not harness.requests
    program, kept = harness.program, len(harness.core.resources)
    program.audit()
    assert len(program.contexts.checkpoints) == kept
    capacity = program.capacity()
    assert capacity.total.state_slots - capacity.available.state_slots == kept
