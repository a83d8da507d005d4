"""Plays agent traffic through an engine core over the fake Program, on a virtual clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ninfer_core.contract.cache import CachePolicy, SaveOffer
from ninfer_core.contract.engine import EngineStats
from ninfer_core.contract.events import Finished
from ninfer_core.contract.frontend import RestoreKind
from ninfer_core.contract.requests import CacheRequest, ChatOptions, ConsumerMode, GenerationOptions
from ninfer_core.contract.resources import PAGE_TOKENS, ProgramLimits
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.testing.engine_harness import EngineHarness, Tracked
from ninfer_core.testing.engine_traffic import VOCAB, TrafficRequest
from ninfer_core.testing.fake_instance import KeepPolicy
from ninfer_core.testing.fake_transactions import FakeConfig

LANES = 4
TICK = 0.01
"""Seconds of the virtual clock per cycle."""

UNLIMITED = FakeConfig(
    page_tokens=PAGE_TOKENS, pages=1 << 20, slots=1 << 16, burst=16, captures=True
)
"""A cache that never gives anything up."""


class EndsOnly(KeepPolicy):
    """Keeps whole prompts with their answers, and no place inside a prompt; the oldest go first."""

    def admit(self, offer: SaveOffer) -> bool:
        return offer.kind is RestoreKind.GENERATION_END


@dataclass(slots=True)
class Replayed:
    """What a policy served. ``reasons`` count requests, ``points`` those that reused something."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    stats: EngineStats = field(default_factory=EngineStats)

    @property
    def share(self) -> float:
        return self.cached_tokens / self.prompt_tokens


def limited(state_slots: int, tokens: int) -> FakeConfig:
    """Room for as many states, active ones included, and as many tokens of context."""
    return FakeConfig(
        page_tokens=PAGE_TOKENS,
        pages=tokens // PAGE_TOKENS,
        slots=state_slots,
        burst=16,
        captures=True,
    )


def replay(requests: Iterable[TrafficRequest], policy: CachePolicy, config: FakeConfig) -> Replayed:
    """Submit in order; a request waits until the one before it in its conversation has its end."""
    limits = ProgramLimits(
        max_context=16384, max_concurrency=LANES, prefill_chunk=512, vocab_rows=VOCAB
    )
    harness = EngineHarness(config, limits, policy, max_pending=2)
    outcome, running = Replayed(), dict[int, Tracked]()
    for request in requests:
        while request.conversation in running or harness.gate.count >= harness.gate.limit:
            _step(harness, running, outcome)
        tracked = _submit(harness, request)
        running[request.conversation] = tracked
        _step(harness, running, outcome)
    while running:
        _step(harness, running, outcome)
    outcome.stats = harness.core.stats()
    harness.requests.clear()
    harness.check_released()
    return outcome


def _submit(harness: EngineHarness, request: TrafficRequest) -> Tracked:
    tracked = harness.submit(
        list(request.tokens),
        GenerationOptions(
            sampling=SamplingParams(seed=request.seed),
            max_new_tokens=request.answer,
            ignore_eos=True,
            min_tokens=request.answer,
            consumer=ConsumerMode.AGGREGATE,
        ),
        cache=CacheRequest(session_key=f"conversation {request.conversation}"),
        chat=ChatOptions(template_kwargs={"points": request.points}),
    )
    assert tracked is not None
    return tracked


def _step(harness: EngineHarness, running: dict[int, Tracked], outcome: Replayed) -> None:
    harness.core.step()
    harness.clock.advance(TICK)
    reason = harness.lifecycle.availability().reason
    assert reason is None, reason
    for conversation, tracked in list(running.items()):
        if tracked.response.ends == 0:
            continue
        del running[conversation]
        harness.requests.remove(tracked)
        harness.consume(tracked)
        end = tracked.response.terminal
        assert isinstance(end, Finished), end
        _book(outcome, end)


def _book(outcome: Replayed, end: Finished) -> None:
    usage, timings = end.result.usage, end.result.timings
    outcome.prompt_tokens += usage.prompt_tokens
    outcome.cached_tokens += usage.cached_tokens
    outcome.reasons[timings.reuse_reason.value] += 1
    if timings.reuse_point is not None:
        outcome.points[timings.reuse_point.value] += 1
