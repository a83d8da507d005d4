"""B requests at once through the public engine, and when each of their tokens arrived."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ninfer_core.contract.engine import GenerationHandle
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.events import Delta, Failed, Finished, GenerationEvent
from ninfer_core.contract.requests import (
    CacheMode,
    CacheRequest,
    GenerationOptions,
    PromptInput,
)
from ninfer_core.contract.sampling import SamplingParams

if TYPE_CHECKING:
    from ninfer_core import Engine
    from ninfer_core.engine.round_timings import RoundTiming

Check = Callable[[], None]
"""Called now and then; it may raise, as for Ctrl-C."""

_PATIENCE = 0.5
"""Seconds between two checks while nothing arrives."""


@dataclass(slots=True)
class Stream:
    """One request: seconds from the submission of all to its first token, arrivals of the later
    ones with how many tokens had come by then, and what it ended with."""

    handle: GenerationHandle
    first: float = 0.0
    tokens: int = 0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Streams of one batch. ``opened`` is when all of them had begun and what had piled up was read
    off, ``closed`` when the first one ended; ``rounds`` are the engine's own records of them."""

    prompt: int
    streams: tuple[Stream, ...]
    opened: float
    closed: float
    rounds: tuple[RoundTiming, ...]

    def window(self, stream: Stream) -> list[tuple[float, int]]:
        """The arrivals while every stream was decoding."""
        return [at for at in stream.arrivals if self.opened <= at[0] <= self.closed]


def prompts(batch: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Random ids from the middle of the vocabulary, away from bytes and marks."""
    rng = random.Random(seed)
    low, high = vocabulary // 8, vocabulary - vocabulary // 8
    return [[rng.randrange(low, high) for _ in range(length)] for _ in range(batch)]


def drive(engine: Engine, ids: Sequence[Sequence[int]], new: int, check: Check) -> Run:
    """Submit all prompts at once, greedily, for ``new`` tokens each, and read all streams to their
    end. They neither use nor leave kept contexts. ``check`` is called now and then and may raise.
    Raises what a request failed with."""
    options = GenerationOptions(
        sampling=SamplingParams(temperature=0.0), max_new_tokens=new, ignore_eos=True
    )
    cache = CacheRequest(mode=CacheMode.DISABLED)
    prepared = [engine.prepare(PromptInput(token_ids=row, cache=cache)) for row in ids]
    before = engine.stats().decode_rounds
    submitted = time.perf_counter()
    streams = [Stream(engine.submit(prompt, options)) for prompt in prepared]
    try:
        _await_first(streams, submitted, check)
        opened = _read_off(streams)
        closed = _follow(streams, opened, check)
    finally:
        for stream in streams:
            stream.handle.close()
    made = engine.stats().decode_rounds - before
    rounds = engine.round_timings()[-made:] if made else ()
    return Run(len(ids[0]), tuple(streams), opened, closed, rounds)


def _await_first(streams: Sequence[Stream], submitted: float, check: Check) -> None:
    """Wait for every stream's first token, each in a thread so that none delays another's clock."""

    def wait(stream: Stream) -> None:
        while not stream.tokens and not stream.ended:
            _take(stream, next_event(stream.handle, check))
        stream.first = time.perf_counter() - submitted

    with ThreadPoolExecutor(len(streams)) as pool:
        list(pool.map(wait, streams))


def _read_off(streams: Sequence[Stream]) -> float:
    """Read what came while later streams began; its arrivals say nothing about rounds."""
    for stream in streams:
        while not stream.ended:
            try:
                _take(stream, stream.handle.next_event(timeout=0))
            except TimeoutError:
                break
    return time.perf_counter()


def _follow(streams: Sequence[Stream], opened: float, check: Check) -> float:
    """Read to the end in one thread. A round's results are published in the order of submission, so
    that waiting for the last stream finds those of the others there: one wake for each round."""
    closed = opened if any(stream.ended for stream in streams) else 0.0
    while running := [stream for stream in reversed(streams) if not stream.ended]:
        for stream in running:
            _take(stream, next_event(stream.handle, check))
            if stream.ended and not closed:
                closed = time.perf_counter()
    return closed or time.perf_counter()


def next_event(handle: GenerationHandle, check: Check) -> GenerationEvent | None:
    """The next event of a request, None behind its last."""
    while True:
        check()
        try:
            return handle.next_event(timeout=_PATIENCE)
        except TimeoutError:
            continue


def _take(stream: Stream, event: GenerationEvent | None) -> None:
    match event:
        case Delta():
            stream.tokens += len(event.token_ids)
            stream.arrivals.append((time.perf_counter(), stream.tokens))
        case Finished():
            stream.ended = True
        case Failed(error):
            raise error
        case None:
            raise EngineFailure("a request ended without a result")
