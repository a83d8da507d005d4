"""Stage `gaps`: what streams wait for their tokens while long prompts of others are read.

Four streams decode while a prompt of 65,536 random tokens is read. Without a bound the 99th
percentile of their gaps may be one chunk and one round; with ``max_gap_ms`` it may be that bound.
The last step is the report of a server whose users' streams stood still: one stream of 2,000
tokens, and two cold prompts of 70,000 tokens behind it.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from _stage import Facts, Stage
from _streams import (
    Span,
    TimedChunks,
    TimedStream,
    decoders,
    opened,
    random_ids,
    spread,
    wait_span,
)

from ninfer_core.contract.requests import PromptInput

BOUND_MS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Tokens, seconds and milliseconds of a run."""

    model: str
    long: int
    short: int
    chunk: int
    quiet: float
    bound: float
    long_stream: int
    cold: int
    delay: float

    @property
    def context(self) -> int:
        return max(self.long, self.cold) + self.long_stream


FULL = Sizes(
    model="geometry:9b", long=65536, short=512, chunk=1024, quiet=4.0, bound=BOUND_MS,
    long_stream=2000, cold=70000, delay=5.0,
)  # fmt: skip
TINY = Sizes(
    model="demo", long=600, short=8, chunk=128, quiet=0.5, bound=60000.0,
    long_stream=300, cold=500, delay=0.5,
)  # fmt: skip


def steps(stage: Stage, asked: argparse.Namespace) -> None:
    sizes = TINY if asked.tiny else FULL
    stage.run("four streams and a long prompt", partial(long_prompt, sizes, asked.device))
    stage.run(
        f"the same, --max-gap-ms {sizes.bound:g}",
        partial(long_prompt, sizes, asked.device, sizes.bound),
    )
    stage.run("one stream and two cold prompts", partial(cold_prompts, sizes, asked.device))


def long_prompt(sizes: Sizes, device: str, bound: float | None = None) -> Facts:
    with _opened(sizes, device, 5, bound) as engine:
        chunks = TimedChunks(engine)
        streams = decoders(engine, 4, sizes.short, sizes.context - sizes.short - 1)
        quiet = wait_span(sizes.quiet)
        read = len(chunks.seconds())
        busy = _read(engine, sizes.long, 1)
        for stream in streams:
            stream.handle.cancel()
        facts = _facts(engine, streams, quiet, busy)
        facts |= spread(chunks.seconds()[read:], "chunk")
    return facts | _verdict(facts, bound)


def cold_prompts(sizes: Sizes, device: str) -> Facts:
    """The bound is stated by the engine at start, from what it measured."""
    with _opened(sizes, device, 3, sizes.bound) as engine:
        [stream] = decoders(engine, 1, sizes.short, sizes.long_stream)
        quiet = wait_span(sizes.delay)
        busy = _read(engine, sizes.cold, 2)
        ended = bool(stream.handle._response.done)
        stream.handle.cancel()
        facts = _facts(engine, [stream], quiet, busy)
    return facts | {"stream_ended_before": ended} | _verdict(facts, sizes.bound)


def _opened(sizes: Sizes, device: str, lanes: int, bound: float | None) -> Any:
    return opened(
        sizes.model,
        device,
        max_concurrency=lanes,
        max_context=sizes.context,
        prefill_chunk=sizes.chunk,
        max_gap_ms=bound,
    )


def _read(engine: Any, tokens: int, count: int) -> Span:
    """From the submission of ``count`` prompts to the last one's first token."""
    vocabulary = engine.load_summary().vocab_size
    prompts = [random_ids(tokens, vocabulary, 100 + number) for number in range(count)]
    start = time.perf_counter()
    readers = [TimedStream(engine, PromptInput(token_ids=ids), 1) for ids in prompts]
    for reader in readers:
        reader.handle.result(600)
    return start, max(reader.arrivals[-1] for reader in readers)


def _facts(engine: Any, streams: list[TimedStream], quiet: Span, busy: Span) -> Facts:
    summary = engine.load_summary()
    alone = [gap for stream in streams for gap in stream.gaps([quiet])]
    beside = [gap for stream in streams for gap in stream.gaps([busy])]
    facts = {
        "prefill_chunk": summary.prefill_chunk,
        "max_gap": summary.details.get("max_gap"),
        "load_seconds": round(summary.seconds, 1),
        "read_seconds": busy[1] - busy[0],
    }
    return facts | spread(beside, "gap") | spread(alone, "round")


def _verdict(facts: Facts, bound: float | None) -> Facts:
    if bound is None:
        bound = facts["chunk_max_ms"] + facts["round_p99_ms"]
    return {"bound_ms": bound, "passed": facts["gap_p99_ms"] <= bound}
