"""Where each microsecond of a decode round goes, kernel by kernel.

Usage: python bench/profile_round.py --geometry 9b [--weights bf16] [--batch 1] [--prompt 512]
                               [--seconds 0.4] [--spec mtp --drafts 3] [--json FILE]

Serves ``--batch`` greedy requests of random weights at a real geometry through the public engine
and traces the device while all of them decode. A round is the kernels from one ``begin_round`` to
the next; a kernel is told apart by its name, its grid and the kernel before it. Prints medians
over the rounds: kernels by their share, the gaps between them, and how long the device is idle
between two rounds. A kernel that is launched ahead waits within its time for the one before it;
``adds_us`` is how much later the round ends by it, from the end of all before it to its own, so
that these add up to the round.

With ``--spec`` it is a round that verifies ``--drafts`` drafts of every row, its fold, and the next
drafts, as the engine replays them at start to time them; no request runs, contexts are empty.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from _draft_stages import PLUGINS

VERIFIED = 30
"""Rounds that verify drafts and are traced."""

FIRST_KERNEL, FIRST_OF_VERIFY = "begin", "resolve"

CONTEXT = 8192
"""Enough for the rounds that run while the profiler starts."""


def trace(engine: Any, batch: int, prompt: int, seconds: float) -> list[dict[str, Any]]:
    """Device events of ``seconds`` in which every row decodes."""
    from ninfer_core.contract.requests import GenerationOptions, PromptInput
    from ninfer_core.contract.sampling import SamplingParams

    options = GenerationOptions(
        sampling=SamplingParams(temperature=0.0), max_new_tokens=CONTEXT - prompt, ignore_eos=True
    )
    prompts = [tuple((31 * i + 7 * row) % 5000 + 10 for i in range(prompt)) for row in range(batch)]
    handles = [engine.submit(PromptInput(token_ids=ids), options) for ids in prompts]
    streams = [iter(handle) for handle in handles]
    for stream in streams:
        for _, _event in zip(range(6), stream, strict=False):
            pass
    events = traced(lambda: time.sleep(seconds))
    for handle in handles:
        handle.cancel()
    for stream in streams:
        for _event in stream:
            pass
    return events


@contextmanager
def verifying(drafts: int, rows: int, rounds: int) -> Iterator[list[dict[str, Any]]]:
    """What an engine that opens inside executes in rounds that verify ``drafts`` drafts of ``rows``
    rows and make new ones."""
    from ninfer_qwen3_5.program.queued.draft_measure import DraftMeasure

    events: list[dict[str, Any]] = []
    costs = DraftMeasure.costs

    def costs_and_trace(measure: Any) -> Any:
        found = costs(measure)
        speculation, lane = measure._speculation, measure._lane

        def replay() -> None:
            for _ in range(rounds):
                measure._verify(rows, speculation.width(drafts + 1))
                speculation.replay_drafts(rows, min(m for m in speculation.makes if m >= drafts))
                lane.synchronize()

        lane.synchronize()
        events.extend(traced(replay))
        return found

    with patch.object(DraftMeasure, "costs", costs_and_trace):
        yield events


def traced(run: Callable[[], object]) -> list[dict[str, Any]]:
    """Kernels and copies of the device while ``run`` does, in their order."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    kinds = {"kernel", "gpu_memcpy", "gpu_memset"}
    device = [event for event in events if event.get("cat") in kinds]
    return sorted(device, key=lambda event: event["ts"])


def split_rounds(
    events: list[dict[str, Any]], first: str = FIRST_KERNEL
) -> list[list[dict[str, Any]]]:
    """Whole rounds, each from its first kernel to the last before the next one's first."""
    starts = [i for i, event in enumerate(events) if first in event["name"]]
    return [events[a:b] for a, b in itertools.pairwise(starts)]


def summarise(rounds: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over rounds of one length: time by kernel, time between kernels, whole rounds."""
    usual = statistics.mode(len(one) for one in rounds)
    alike = [one for one in rounds if len(one) == usual]
    ends = [list(itertools.accumulate((e["ts"] + e["dur"] for e in one), max)) for one in alike]
    kernels: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for place in range(usual):
        lasted = statistics.median(one[place]["dur"] for one in alike)
        added = statistics.median(
            made[place] - (made[place - 1] if place else one[0]["ts"])
            for one, made in zip(alike, ends, strict=True)
        )
        kernels[_named(alike[0], place)].append((lasted, added))
    gaps = [
        max(0.0, b["ts"] - a["ts"] - a["dur"]) for one in alike for a, b in itertools.pairwise(one)
    ]
    spans = [one[-1]["ts"] + one[-1]["dur"] - one[0]["ts"] for one in alike]
    periods = [after[0]["ts"] - before[0]["ts"] for before, after in itertools.pairwise(rounds)]
    idle = [b[0]["ts"] - max(e["ts"] + e["dur"] for e in a) for a, b in itertools.pairwise(rounds)]
    table: list[dict[str, Any]] = [
        {
            "kernel": key,
            "calls": len(times),
            "us": round(sum(lasted for lasted, _ in times), 2),
            "adds_us": round(sum(added for _, added in times), 2),
        }
        for key, times in kernels.items()
    ]
    table.sort(key=lambda row: -row["adds_us"])
    return {
        "rounds": len(alike),
        "kernels_per_round": usual,
        "span_us": round(statistics.median(spans), 1),
        "period_us": round(statistics.median(periods), 1),
        "idle_us_p50": round(statistics.median(idle), 2),
        "idle_us_max": round(max(idle), 2),
        "busy_us": round(sum(row["us"] for row in table), 1),
        "gap_us_median": round(statistics.median(gaps), 3),
        "table": table,
    }


def _named(one: list[dict[str, Any]], place: int) -> str:
    event = one[place]
    behind = f" behind {one[place - 1]['name'][:24]}" if place else ""
    return f"{event['name'][:48]} {event.get('args', {}).get('grid', '')}{behind}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--geometry", required=True)
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--spec", choices=PLUGINS)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    from ninfer_core import Engine
    from ninfer_core.contract.engine import EngineOptions

    suffix = "" if options.weights == "bf16" else f":{options.weights}"
    model = f"geometry:{options.geometry}{suffix}"
    settings = EngineOptions(
        devices=("cuda:0",),
        max_concurrency=options.batch,
        max_context=CONTEXT,
        cache_policy="off",
    )
    report = {"geometry": options.geometry, "weights": options.weights, "batch": options.batch}
    if options.spec:
        report |= {"spec": options.spec, "drafts": options.drafts}
        settings = replace(
            settings,
            plugins=(PLUGINS[options.spec],),
            draft=options.spec,
            draft_tokens=options.drafts,
        )
        with (
            verifying(options.drafts, options.batch, VERIFIED) as events,
            Engine.open(model, settings),
        ):
            pass
        report |= summarise(split_rounds(events, FIRST_OF_VERIFY))
    else:
        with Engine.open(model, settings) as engine:
            events = trace(engine, options.batch, options.prompt, options.seconds)
        report |= summarise(split_rounds(events))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print({key: value for key, value in report.items() if key != "table"})
    for row in report["table"][:40]:
        print(f"{row['adds_us']:9.1f} of {row['us']:9.1f} us {row['calls']:4d} x {row['kernel']}")


if __name__ == "__main__":
    main()
