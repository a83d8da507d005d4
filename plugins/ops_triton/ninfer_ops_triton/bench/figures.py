"""From arrivals and the engine's records to the figures of one batch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from ninfer_ops_triton.bench.drive import Run
from ninfer_ops_triton.bench.traffic import Traffic

HOST_PARTS: Final = ("engine", "submit", "post", "output", "host")

Json = dict[str, Any]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def figures(run: Run, traffic: Traffic | None, *, drafting: bool = False) -> Json:
    """Of one run; None where nothing of the kind was measured.

    A round is the time between two arrivals of the stream that is waited for. It gives each stream
    a token; with ``drafting`` as many as were counted.
    """
    batch, prompt = len(run.streams), run.prompt
    firsts = [stream.first for stream in run.streams]
    rounds = _gaps(run, batch - 1)
    gaps = [gap for index in range(batch) for gap in _gaps(run, index)]
    middle = statistics.median(rounds) if rounds else None
    context = _context(run)
    tokens = _tokens_per_round(run) if drafting else 1.0
    moved = traffic.of_round(batch, context) if traffic and context else None
    return {
        "batch": batch,
        "prompt_tokens": prompt,
        "ttft_ms": {"p50": _ms(statistics.median(firsts)), "max": _ms(max(firsts))},
        "prefill_tokens_per_second": round(batch * prompt / max(firsts), 1),
        "decode_tokens_per_second": round(batch * tokens / middle, 1) if middle else None,
        "decode_tokens_per_second_mean": _mean_rate(run),
        "rounds": len(rounds),
        **({"tokens_per_round": round(tokens, 3)} if drafting else {}),
        "round_ms": _spread(rounds),
        "gap_ms": _spread(gaps),
        **_records(run, batch),
        "mean_context": round(context, 1) if context else None,
        "bytes_per_round": moved.to_json() if moved else None,
    }


def roofline_share(figures: Json, bandwidth: float | None) -> float | None:
    """The time that ``bytes_per_round`` take at ``bandwidth`` bytes per second, by the median of
    the rounds."""
    moved, rounds = figures["bytes_per_round"], figures["round_ms"]
    if not (moved and rounds and bandwidth):
        return None
    share: float = moved["total"] / bandwidth / (1e-3 * rounds["p50"])
    return round(share, 4)


def _gaps(run: Run, index: int) -> list[float]:
    arrivals = run.window(run.streams[index])
    return [later[0] - earlier[0] for earlier, later in pairwise(arrivals)]


def _spread(values: Sequence[float]) -> Json | None:
    if not values:
        return None
    return {"p50": _ms(statistics.median(values)), "p99": _ms(percentile(values, 0.99))}


def _mean_rate(run: Run) -> float | None:
    """Tokens of all streams by the time that they took, first and last arrival of each."""
    windows = [window for stream in run.streams if len(window := run.window(stream)) > 1]
    if not windows:
        return None
    return round(sum((w[-1][1] - w[0][1]) / (w[-1][0] - w[0][0]) for w in windows), 1)


def _tokens_per_round(run: Run) -> float:
    """Of one stream, averaged over all; 1 where none was measured."""
    windows = [window for stream in run.streams if len(window := run.window(stream)) > 1]
    rounds = sum(len(window) - 1 for window in windows)
    return sum(w[-1][1] - w[0][1] for w in windows) / rounds if rounds else 1.0


def _context(run: Run) -> float | None:
    """Tokens before a row's own, in the middle of the window, averaged over the rows."""
    windows = [window for stream in run.streams if (window := run.window(stream))]
    if not windows:
        return None
    return run.prompt + statistics.mean((w[0][1] + w[-1][1]) / 2 for w in windows)


def _records(run: Run, batch: int) -> Json:
    """Medians over the rounds in which every stream had its row and nothing else was settled."""
    rounds = [timing for timing in run.rounds if timing.rows == batch and timing.alone]
    if not rounds:
        return {"host_us": None, "device_wait_us": None}
    host = {
        part: round(statistics.median(getattr(timing, part) for timing in rounds), 1)
        for part in HOST_PARTS
    }
    wait = statistics.median(timing.wait for timing in rounds)
    return {"host_us": host, "device_wait_us": round(wait, 1)}


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 4)
