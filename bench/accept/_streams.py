"""Streams whose tokens are timed where an engine publishes them, and the work beside them."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams

Span = tuple[float, float]
"""Two times of ``time.perf_counter``."""


class TimedStream:
    """A greedy request that goes on to ``tokens`` tokens. ``arrivals`` are the times at which
    something was published for it."""

    def __init__(self, engine: Any, prompt: Any, tokens: int) -> None:
        self.arrivals: list[float] = []
        self.submitted = time.perf_counter()
        self.handle = engine.submit(prompt, greedy(tokens))
        self.handle.subscribe(lambda: self.arrivals.append(time.perf_counter()))

    def gaps(self, spans: Sequence[Span]) -> list[float]:
        """Seconds between neighbouring arrivals that lie, wholly or partly, in one of ``spans``."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [b - a for a, b in pairs if any(b > start and a < end for start, end in spans)]

    def await_tokens(self, count: int, timeout: float = 120.0) -> None:
        """Until ``count`` things, the start included, have been published."""
        until = time.perf_counter() + timeout
        while len(self.arrivals) < count:
            if time.perf_counter() > until:
                raise TimeoutError(f"{len(self.arrivals)} of {count} arrivals in {timeout} s")
            time.sleep(0.002)

    def first_token(self, timeout: float = 300.0) -> float:
        """Seconds from the submission to the first token, when the request has ended."""
        self.handle.result(timeout)
        return self.arrivals[min(1, len(self.arrivals) - 1)] - self.submitted


def greedy(tokens: int) -> GenerationOptions:
    return GenerationOptions(
        sampling=SamplingParams(temperature=0.0), max_new_tokens=tokens, ignore_eos=True
    )


def random_ids(count: int, vocabulary: int, seed: int) -> list[int]:
    """From the middle of the vocabulary, away from bytes and marks."""
    rng = random.Random(seed)
    return [rng.randrange(vocabulary // 8, vocabulary - vocabulary // 8) for _ in range(count)]


def spread(seconds: Sequence[float], name: str) -> dict[str, Any]:
    """Count, median, 99th percentile and largest in milliseconds."""
    if not seconds:
        return {f"{name}_count": 0}
    ordered = sorted(seconds)
    return {
        f"{name}_count": len(ordered),
        f"{name}_p50_ms": 1e3 * statistics.median(ordered),
        f"{name}_p99_ms": 1e3 * p99(ordered),
        f"{name}_max_ms": 1e3 * ordered[-1],
    }


def p99(seconds: Sequence[float]) -> float:
    """The smallest value that 99 % do not exceed."""
    ordered = sorted(seconds)
    return ordered[max(0, -(-99 * len(ordered) // 100) - 1)]


@contextlib.contextmanager
def opened(model: str, device: str, **options: Any) -> Iterator[Any]:
    settings: dict[str, Any] = {"max_pending": 64, "queue_timeout": None} | options
    with Engine.open(model, EngineOptions(devices=(device,), **settings)) as engine:
        yield engine


def decoders(engine: Any, count: int, prompt: int, tokens: int) -> list[TimedStream]:
    """``count`` streams that have their first tokens."""
    vocabulary = engine.load_summary().vocab_size
    streams = [
        TimedStream(engine, PromptInput(token_ids=random_ids(prompt, vocabulary, seed)), tokens)
        for seed in range(count)
    ]
    for stream in streams:
        stream.await_tokens(4)
    return streams


def wait_span(seconds: float) -> Span:
    """Let ``seconds`` pass."""
    start = time.perf_counter()
    time.sleep(seconds)
    return start, time.perf_counter()


class TimedChunks:
    """How long each chunk of a prompt takes on the device: between two events around it on a GPU,
    from its launch to its end on the CPU."""

    def __init__(self, engine: Any) -> None:
        self._program = engine._core.program
        self._queued = self._program.limits.rounds_ahead > 0
        self._launch = self._program.launch_prefill
        self._marks: list[tuple[Any, Any]] = []
        self._program.launch_prefill = self._timed

    def seconds(self) -> list[float]:
        """Of the chunks so far, all of which have ended."""
        if not self._queued:
            return [end - start for start, end in self._marks]
        for _, end in self._marks:
            end.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in self._marks]

    def _timed(self, row: Any) -> Any:
        start = self._mark()
        launched = self._launch(row)
        self._marks.append((start, self._mark()))
        return launched

    def _mark(self) -> Any:
        if not self._queued:
            return time.perf_counter()
        import torch

        new_event: Any = torch.cuda.Event
        event = new_event(enable_timing=True)
        event.record()
        return event


def between(engine: Any, question: Callable[[], Any]) -> Any:
    """Have the worker answer ``question`` between two of its cycles."""
    return engine._lifecycle.ask(question)
