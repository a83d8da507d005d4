"""Plays conversations through the public engine, one request at a time, and times each turn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_core.contract.engine import EngineLike
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.events import Delta, Failed, Finished, GenerationResult
from ninfer_core.contract.requests import CacheMode, CacheRequest, GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_ops_triton.bench.drive import Check, next_event
from ninfer_ops_triton.bench.talks import Talk


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer. ``first`` is in seconds from the submission, preparation included, to the first
    tokens."""

    conversation: int
    turn: int
    first: float
    result: GenerationResult

    def facts(self) -> dict[str, Any]:
        usage, timings = self.result.usage, self.result.timings
        return {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "reason": timings.reuse_reason.value,
            "point": timings.reuse_point and timings.reuse_point.value,
            "tier": timings.reuse_tier and timings.reuse_tier.value,
            "restored_bytes": timings.restored_bytes,
            "ttft_ms": round(1e3 * self.first, 3),
        }


def play(
    engine: EngineLike,
    talks: Sequence[Talk],
    turns: int,
    new: int,
    mode: CacheMode,
    check: Check,
) -> Iterator[Turn]:
    """``turns`` rounds in which every conversation has one turn, each of them greedy and of exactly
    ``new`` tokens. ``check`` is called now and then and may raise.

    Raises what a request failed with.
    """
    options = GenerationOptions(
        sampling=SamplingParams(temperature=0.0), max_new_tokens=new, ignore_eos=True
    )
    for turn in range(turns):
        for number, talk in enumerate(talks):
            cache = CacheRequest(mode=mode, session_key=f"conversation {number}")
            first, result = timed(engine, talk.ask(cache), options, check)
            talk.answered(result)
            yield Turn(number, turn, first, result)


def timed(
    engine: EngineLike, prompt: PromptInput, options: GenerationOptions, check: Check
) -> tuple[float, GenerationResult]:
    """Seconds to the first tokens, or to the end of an answer without any, and the result."""
    submitted, first = time.perf_counter(), None
    handle = engine.submit(prompt, options)
    try:
        while True:
            event = next_event(handle, check)
            passed = time.perf_counter() - submitted
            match event:
                case Delta() if event.token_ids and first is None:
                    first = passed
                case Finished(result):
                    return passed if first is None else first, result
                case Failed(error):
                    raise error
                case None:
                    raise EngineFailure("a request ended without a result")
    finally:
        handle.close()
