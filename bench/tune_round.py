"""Time a decode round of one model under several settings of its launches, loading it once.

Usage: python bench/tune_round.py [--geometry 27b] [--weights q4] [--batch 1,8] [--context 512]
       [--only NAME ...] [--tiles FILE ...] [--json FILE] [--seconds 90] [--device cuda:0]
       [--profile NAME ...]

Each variant captures the greedy round again, with the kernels that it needs compiled ahead, and
replays it; variants run one after another in the order of the list until the time is spent, the
first one again at the end, which says how far times drift. Those named by ``--profile`` are traced
too: their kernels come as ``profile_round.py`` gives them, for the first batch. FILE is a table as
``tune_linear.py`` writes it; each becomes a variant. Keys and values of all tokens lie on one page:
what attention reads of a short context does not count here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _round_variants import VARIANTS, Variant, applied

from ninfer_ops_triton.prepare import prepare

ROUNDS, REPEATS = 3, 9
"""Rounds enqueued together, as many as the ring takes, and how often."""


class Bench:
    """The round of an instance, which this thread built and whose lane it has entered."""

    def __init__(self, geometry: str, weights: str, device: str, batch: int, context: int) -> None:
        from ninfer_core.contract.engine import EngineOptions
        from ninfer_core.instance import instance_factory
        from ninfer_qwen3_5.program.queued import rounds as module

        self._context = context
        found: dict[str, Any] = {}

        def kept(rounds: Any, device: Any, lane: Any) -> None:
            """In place of capturing at the start."""
            found.update(rounds=rounds, device=device, lane=lane)

        original = module.Rounds.capture
        module.Rounds.capture = kept  # type: ignore[assignment, method-assign]
        try:
            suffix = "" if weights == "bf16" else f":{weights}"
            source = geometry if geometry == "demo" else f"geometry:{geometry}{suffix}"
            options = EngineOptions(
                devices=(device,), max_concurrency=batch, max_context=8192, cache_policy="off"
            )
            self.opened = instance_factory(source, options)()
        finally:
            module.Rounds.capture = original  # type: ignore[method-assign]
        self._part = module.Part.GREEDY
        self._rounds, self._device, self._lane = (
            found[name] for name in ("rounds", "device", "lane")
        )
        self._rounds._lanes.tables.block_tables.zero_()

    @contextmanager
    def captured(self, batch: int) -> Iterator[Any]:
        """The graph of a round, compiled and captured as launches are now."""

        def run() -> None:
            self._rounds.run(batch, self._part)

        prepare(run)
        self._write(batch)
        run()
        self._lane.synchronize()
        graph = self._device.capture(run, self._lane)
        try:
            yield graph
        finally:
            graph.close()

    def milliseconds(self, batch: int) -> list[float]:
        """Of one round, each time."""
        with self.captured(batch) as graph:
            return [self._timed(graph, batch) for _ in range(REPEATS + 2)][2:]

    def kernels(self, batch: int) -> dict[str, Any]:
        """What the profiler sees of some rounds in a row."""
        from profile_round import split_rounds, summarise, traced

        with self.captured(batch) as graph:
            self._timed(graph, batch)
            events = traced(lambda: [self._timed(graph, batch) for _ in range(4)])
        found: dict[str, Any] = summarise(split_rounds(events))
        return found

    def _timed(self, graph: Any, batch: int) -> float:
        import torch

        start, stop = (torch.cuda.Event(enable_timing=True) for _ in "ab")  # type: ignore[no-untyped-call]
        for _ in range(ROUNDS):
            self._write(batch)
        start.record()
        for _ in range(ROUNDS):
            graph.replay()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / ROUNDS

    def _write(self, batch: int) -> None:
        # Lane, token, start, slot, target slot, offset of rotary positions.
        rows = [(lane, 7 + lane, self._context, lane, batch + lane, 0) for lane in range(batch)]
        self._rounds._ring.write(rows, [])


def measured(bench: Bench, variant: Variant, batches: list[int]) -> dict[str, Any]:
    begun = time.perf_counter()
    row: dict[str, Any] = {"variant": variant.name}
    try:
        with applied(variant):
            for batch in batches:
                times = bench.milliseconds(batch)
                row[f"ms {batch}"] = round(statistics.median(times), 4)
                row[f"least {batch}"] = round(min(times), 4)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {str(error)[-300:]}"
    return row | {"seconds": round(time.perf_counter() - begun, 1)}


def profiled(bench: Bench, variant: Variant, batch: int) -> dict[str, Any]:
    try:
        with applied(variant):
            return {"variant": variant.name} | bench.kernels(batch)
    except Exception as error:
        return {"variant": variant.name, "error": f"{type(error).__name__}: {str(error)[-300:]}"}


def chosen(names: list[str], tables: list[Path]) -> list[Variant]:
    """Those asked for, all without names, and behind the first one for each table."""
    known = [v for v in VARIANTS if not names or any(name in v.name for name in names)]
    made = [Variant(f"tiles of {path.name}", table=path) for path in tables]
    return [*known[:1], *made, *known[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--geometry", default="27b")
    parser.add_argument("--weights", default="q4")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--only", nargs="+", default=[], help="variants with this in their names")
    parser.add_argument("--profile", nargs="+", default=[], help="names of variants to trace")
    parser.add_argument("--tiles", nargs="+", type=Path, default=[])
    parser.add_argument("--seconds", type=float, default=90, help="after which no variant begins")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    batches = [int(count) for count in options.batch.split(",")]
    begun = time.perf_counter()
    bench = Bench(options.geometry, options.weights, options.device, max(batches), options.context)
    print(f"loaded in {time.perf_counter() - begun:.1f} s", flush=True)
    rows: list[dict[str, Any]] = []
    profiles: list[dict[str, Any]] = []

    def write() -> None:
        report = {"geometry": options.geometry, "weights": options.weights}
        report |= {"rows": rows, "profiles": profiles}
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    variants = chosen(options.only, options.tiles)
    for variant in [*variants, variants[0]]:
        if time.perf_counter() - begun > options.seconds:
            break
        rows.append(measured(bench, variant, batches))
        print(rows[-1], flush=True)
        write()
    for variant in VARIANTS:
        if variant.name in options.profile:
            profiles.append(profiled(bench, variant, batches[0]))
            write()


if __name__ == "__main__":
    main()
