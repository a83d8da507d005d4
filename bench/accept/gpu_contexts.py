"""Stage `contexts`: a sixth turn over kept contexts, and a paused context that comes back.

Prompts are random token ids with explicit restore points where a client's markers would put them:
behind each question. What follows there on the next turn is another rendering of the answer, as
where a template strips thoughts, so that the end of the answer is no use.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from _stage import Facts, Stage
from _streams import (
    Span,
    TimedStream,
    between,
    decoders,
    opened,
    p99,
    random_ids,
    spread,
    wait_span,
)

from ninfer_core.contract.frontend import RestoreKind, RestorePoint
from ninfer_core.contract.requests import CacheMode, CacheRequest, PromptInput

TURNS = 6
OPENER = 8
"""Tokens behind the last question of a prompt, where an answer begins."""

COLD_SHARE, BANDWIDTH_SHARE, GAP_RATIO = 0.08, 0.70, 1.5
"""Most of a cold time to the first token, least of a plain copy's rate, most of quiet gaps."""

WAYS = ("out", "in")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Tokens, seconds, bytes and counts of a run."""

    model: str
    context: int
    question: int
    answer: int
    repeats: int
    short: int
    quiet: float
    pauses: int
    host: int


FULL = Sizes(
    model="geometry:9b", context=32768, question=256, answer=64, repeats=3, short=512, quiet=4.0,
    pauses=20, host=4 << 30,
)  # fmt: skip
TINY = Sizes(
    model="demo", context=512, question=16, answer=8, repeats=1, short=8, quiet=0.3, pauses=2,
    host=64 << 20,
)  # fmt: skip


def steps(stage: Stage, asked: argparse.Namespace) -> None:
    sizes = TINY if asked.tiny else FULL
    strict = not asked.tiny
    stage.run("sixth turn", partial(sixth_turn, sizes, asked.device, strict))
    stage.run("pause and resume", partial(pause_and_resume, sizes, asked.device, strict))


def sixth_turn(sizes: Sizes, device: str, strict: bool) -> Facts:
    """Turns whose prompts grow to ``context`` tokens; the last one is asked several times, with
    other questions, out of the cache and with it."""
    with opened(sizes.model, device, max_context=sizes.context + 512) as engine:
        vocabulary = engine.load_summary().vocab_size
        prompt, marker = [], 0
        for turn in range(TURNS - 1):
            more = sizes.context // (TURNS - 1) - sizes.question
            prompt = [*prompt[:marker], *random_ids(more, vocabulary, turn)]
            marker = len(prompt) - OPENER
            _ask(engine, prompt, marker, sizes.answer)
        warm, cold = [], []
        for number in range(sizes.repeats + 1):
            last = random_ids(sizes.question, vocabulary, 50 + number)
            asked = [*prompt[:marker], *last]
            cold.append(_ask(engine, asked, marker, sizes.answer, CacheMode.DISABLED))
            warm.append(_ask(engine, asked, marker, sizes.answer))
    times = [statistics.median(first for first, _ in turns[1:]) for turns in (warm, cold)]
    facts: Facts = {
        "prompt_tokens": len(asked),
        "cached_tokens": [result.usage.cached_tokens for _, result in warm],
        "reasons": sorted({result.timings.reuse_reason.value for _, result in warm}),
        "ttft_ms": 1e3 * times[0],
        "cold_ttft_ms": 1e3 * times[1],
        "share": times[0] / times[1],
        "same_answers": sum(
            w.token_ids == c.token_ids for (_, w), (_, c) in zip(warm, cold, strict=True)
        ),
    }
    cached = all(count == marker for count in facts["cached_tokens"])
    return facts | {"passed": cached and (not strict or facts["share"] <= COLD_SHARE)}


def _ask(
    engine: Any, ids: list[int], marker: int, tokens: int, mode: CacheMode = CacheMode.READ_WRITE
) -> tuple[float, Any]:
    """Seconds to the first token, and the result."""
    prepared = engine.prepare(PromptInput(token_ids=ids, cache=CacheRequest(mode=mode)))
    points = (RestorePoint(marker, RestoreKind.EXPLICIT),)
    prepared = replace(prepared, restore_points=points)
    stream = TimedStream(engine, prepared, tokens)
    first = stream.first_token()
    return first, stream.handle.result(1)


def pause_and_resume(sizes: Sizes, device: str, strict: bool) -> Facts:
    """Three streams decode beside one of ``context`` tokens that is paused and comes back again and
    again, as if older requests pressed it."""
    options = {"max_concurrency": 4, "max_context": sizes.context + 4096, "host_bytes": sizes.host}
    with opened(sizes.model, device, cache_policy="off", **options) as engine:
        transfers = engine._core.program._contexts._tier.transfers
        copies = Copies(transfers)
        streams = decoders(engine, 3, sizes.short, sizes.context)
        ids = random_ids(sizes.context, engine.load_summary().vocab_size, 7)
        victim = TimedStream(engine, PromptInput(token_ids=ids), 4000)
        victim.await_tokens(4, 300)
        quiet = wait_span(sizes.quiet)
        presser = Presser(engine, victim)
        held = HostTimes(engine._core)
        presses = [presser.press() for _ in range(sizes.pauses)]
        plain = between(engine, partial(plain_rates, transfers, copies.largest))
        victim.handle.cancel()
        timings = victim.handle.result(60).timings
        for stream in streams:
            stream.handle.cancel()
    alone = [gap for stream in streams for gap in stream.gaps([quiet])]
    beside = [gap for stream in streams for gap in stream.gaps(presses)]
    facts: Facts = {
        "pauses": timings.pauses,
        "restores": timings.restores,
        "replays": timings.replays,
        "bytes": copies.largest,
        "pause_and_resume_ms": 1e3 * statistics.median(end - start for start, end in presses),
        "gap_ratio": p99(beside) / p99(alone),
    }
    facts |= spread(alone, "quiet") | spread(beside, "gap") | held.facts()
    for way in WAYS:
        facts[f"plain_{way}_gb_s"] = plain[way] / 1e9
        facts[f"{way}_gb_s"] = copies.rate(way) / 1e9
        facts[f"{way}_share"] = copies.rate(way) / plain[way]
    fast = all(facts[f"{way}_share"] >= BANDWIDTH_SHARE for way in WAYS)
    right = timings.pauses == timings.restores == sizes.pauses and not timings.replays
    passed = right and (not strict or (fast and facts["gap_ratio"] <= GAP_RATIO))
    return facts | {"passed": passed}


class Presser:
    """Pauses a stream as an older request that lacks room does: in the worker's cycle, where the
    stream is in no round."""

    def __init__(self, engine: Any, victim: TimedStream) -> None:
        self._core = engine._core
        self._victim = victim
        self._wanted = False
        self._began = 0.0
        self._begin = self._core.captures.begin
        self._core.captures.begin = self._cycle

    def press(self) -> Span:
        """Pause, see it come back, and give it some rounds; the span of pause and return."""
        self._wanted = True
        while self._wanted:
            time.sleep(0.001)
        came = sum(arrival < self._began for arrival in self._victim.arrivals)
        self._victim.await_tokens(came + 8)
        return self._began, self._victim.arrivals[came]

    def _cycle(self) -> None:
        if self._wanted and not self._core.contexts.open:
            self._wanted = not self._pause()
        self._begin()

    def _pause(self) -> bool:
        name = self._victim.handle.request_id
        [record] = [r for r in self._core.scheduler.residents if r.request_id == name]
        if record.flying:
            record.held_back = True
            return False
        self._began = time.perf_counter()
        return bool(self._core.pressure.pause(record))


class HostTimes:
    """What the steps of a cycle that pause, copy and bring back cost the host each time."""

    def __init__(self, core: Any) -> None:
        self._times: dict[str, list[float]] = {}
        steps = {"advance": core.contexts, "begin": core.captures, "resume_oldest": core.admission}
        for name, owner in steps.items():
            timed = partial(self._timed, self._times.setdefault(name, []), getattr(owner, name))
            setattr(owner, name, timed)

    def _timed(self, times: list[float], step: Any) -> None:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)

    def facts(self) -> Facts:
        """Milliseconds of the 20th longest, about one for each pause, and of the longest."""
        longest = {name: sorted(times)[-20:] for name, times in self._times.items()}
        twentieth = {f"host_{name}_20th_ms": 1e3 * times[0] for name, times in longest.items()}
        return twentieth | {f"host_{name}_max_ms": 1e3 * t[-1] for name, t in longest.items()}


class Copies:
    """Times each transfer on its lane, from the first part on, which the compute lane let begin, to
    the end of the last."""

    def __init__(self, transfers: Any) -> None:
        self._transfers = transfers
        self._start, self._enqueue = transfers._start, transfers._enqueue
        self._marks: dict[str, list[list[tuple[int, Any, Any]]]] = {way: [] for way in WAYS}
        transfers._start, transfers._enqueue = self._started, self._timed

    @property
    def largest(self) -> int:
        """Bytes of the largest transfer so far: a whole context with its state."""
        return max(size for size, _ in self._timings(*WAYS))

    def rate(self, way: str) -> float:
        """Bytes per second, the median over transfers of at least half the largest."""
        rates = [size / took for size, took in self._timings(way) if 2 * size >= self.largest]
        return statistics.median(rates) if rates else 0.0

    def _timings(self, *ways: str) -> list[tuple[int, float]]:
        """Bytes and seconds of each transfer."""
        return [
            (sum(size for size, _, _ in parts), seconds_between(parts[0][1], parts[-1][2]))
            for way in ways
            for parts in self._marks[way]
        ]

    def _started(self, way: Any, *given: Any) -> Any:
        self._of(way).append([])
        return self._start(way, *given)

    def _timed(self, way: Any, state: Any, pages: Any) -> None:
        transfers = self._transfers
        size = len(pages) * transfers.page_bytes + len(state) * transfers.slot_bytes
        start = mark(way.lane)
        self._enqueue(way, state, pages)
        self._of(way)[-1].append((size, start, mark(way.lane)))

    def _of(self, way: Any) -> list[list[tuple[int, Any, Any]]]:
        return self._marks["out" if way.lane is self._transfers.lane_out else "in"]


def plain_rates(transfers: Any, size: int) -> dict[str, float]:
    """Bytes per second of one copy of ``size`` contiguous bytes each way. On the worker."""
    import torch

    device = transfers._pages.planes[0].device
    there = torch.empty(size, dtype=torch.uint8, device=device)
    # A second place: the first one holds what the host tier holds.
    here = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    ways = {"out": (transfers.lane_out, here, there), "in": (transfers.lane_in, there, here)}
    rates = {}
    for name, (lane, target, source) in ways.items():
        times = []
        with lane.enter():
            for _ in range(5):
                start = mark(lane)
                target.copy_(source, non_blocking=True)
                times.append(seconds_between(start, mark(lane)))
        rates[name] = size / statistics.median(times)
    return rates


def mark(lane: Any) -> Any:
    """A point in the work of ``lane``, which the thread has entered; a time where it has none."""
    stream = getattr(lane, "torch_stream", None)
    if stream is None:
        return time.perf_counter()
    import torch

    new_event: Any = torch.cuda.Event
    event = new_event(enable_timing=True)
    event.record(stream)
    return event


def seconds_between(start: Any, end: Any) -> float:
    if isinstance(start, float):
        return max(1e-9, float(end - start))
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
