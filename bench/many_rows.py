"""Time the decode products for few and many activation rows, cut in several ways.

Usage: python bench/many_rows.py [--models 27B 9B] [--formats bf16] [--rows 4 8 12 16 20 32]
       [--json FILE] [--write FILE]

For each weight, in CUDA graphs over copies that together do not fit the L2 cache: the cut that
ships (``ships``), the one before it (``before``) and variations. Each is held against the product
of one row alone, bit for bit. Prints a line for each weight and number of rows, and what all
products of a round take by ``before``, by ``ships`` and by the best. ``--write`` puts the best into
a table like ``tiles.json``, where it is right and 2 % faster than what ships at the most rows of
its kernel; not for 8 rows and fewer, whose kernel is that of a row alone.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from _products import FORMATS, MODELS, VOCABULARY, Case, Pools, blank, cases, operands_of
from tune_linear import TABLE, measure

from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_ops_triton import cuts, launch, tiles
from ninfer_ops_triton.cuts import Cut, warps_of
from ninfer_ops_triton.tiles import BYTES, Tile

MIXERS = {"0.8B": (18, 6), "4B": (24, 8), "9B": (24, 8), "27B": (48, 16)}
"""Layers with a gated delta net, and with attention."""

MOST_SHARED = 220 << 10
"""Bytes of shared memory that a program may ask for."""


@dataclass(frozen=True)
class Way:
    """A cut, for ``n`` activation rows a program."""

    name: str
    n: int
    cut: Cut

    @contextmanager
    def used(self) -> Iterator[None]:
        with (
            patch.object(tiles, "padded_rows", lambda count: self.n),
            patch.object(cuts, "cut_for", lambda *_: self.cut),
        ):
            yield


def tile_of(case: Case) -> Tile:
    return tiles.choose(case.fusion, case.kind, case.rows, case.columns)


def halves(case: Case) -> int:
    return case.stored // case.rows


def before(case: Case, tile: Tile, n: int) -> Cut:
    """Twice the rows as long as there is a program for nine in ten multiprocessors, and 160 KiB for
    the steps; nothing else."""
    size = tile.block_r
    most = size if case.kind == "q4" or n <= 8 else min(64, 2 * n) // halves(case)
    while 2 * size <= most:
        programs = -(-case.rows // (2 * size)) * tile.parts(case.columns)
        own = replace(tile, block_r=2 * size)
        if needed(case, own, Cut(2 * size, 1, tile.warps, tile.stages), n) > 160 << 10:
            break
        if 10 * programs < 9 * launch.multiprocessors():
            break
        size *= 2
    return Cut(size, 1, tile.warps, tile.stages)


def needed(case: Case, tile: Tile, cut: Cut, n: int) -> float:
    """Bytes of shared memory, about."""
    row = cut.block_r * halves(case) * BYTES[case.kind] + 2 * n
    return tile.block_k / cut.share * row * (cut.stages - 1)


def ways(case: Case, n: int) -> list[Way]:
    """Distinct ways to compute ``n`` padded rows, the one that ships first."""
    tile = tile_of(case)
    ships = cuts.cut_for(tile, n, case.fusion, case.kind, case.rows, case.columns)
    found = [Way("ships", n, ships), Way("before", n, before(case, tile, n))]
    if n == tiles.MOST_ROWS:
        half = cuts.cut_for(tile, 16, case.fusion, case.kind, case.rows, case.columns)
        found.append(Way("two of 16", 16, half))
    smaller, larger = ships.block_r // 2, ships.block_r * 2
    least = tile.block_r if case.fusion == "linear" else 16
    others = [("half the rows", replace(ships, block_r=smaller))] if smaller >= least else []
    if case.kind != "q4":
        others.append(("near", replace(ships, near=True)))
        others += [(f"{count} stages", replace(ships, stages=count)) for count in (3, 4, 5)]
        if n > 8:
            others += [("twice the rows", replace(ships, block_r=larger, stages=3))]
            for share in (1, 2, 4, 8):
                if share <= tile.groups:
                    dealt = replace(ships, share=share, warps=warps_of(tile, share))
                    others.append((f"{share} share", dealt))
    for name, cut in others:
        room = needed(case, tile, cut, n) <= MOST_SHARED
        if room and cut.block_r * halves(case) <= 128 and cut not in [way.cut for way in found]:
            found.append(Way(name, n, cut))
    return found


def compile_one(job: tuple[Case, Way, int]) -> str | None:
    """Leave a kernel in Triton's cache on disk; what went wrong, or None."""
    case, way, count = job

    def warm(kernel: Any, grid: Any, args: Any, options: Any) -> None:
        kernel.warmup(*args, grid=grid, **options)

    launch.observers[:] = [warm]
    try:
        with launch.dry_run(), way.used():
            case.call(*blank(case, count))
    except Exception as error:
        return f"{case} {way}: {type(error).__name__}: {str(error)[-300:]}"
    return None


def jobs(wanted: list[Case], rows: list[int]) -> list[tuple[Case, Way, int]]:
    """One job for each kernel, and those of a row alone."""
    padded = sorted({tiles.padded_rows(count) for count in rows if count > 1})
    found: dict[Any, tuple[Case, Way, int]] = {}
    for case in wanted:
        found[case] = (case, ways(case, 8)[0], 1)
        for way in (way for n in padded for way in ways(case, n)):
            found.setdefault((case, way.n, way.cut), (case, way, way.n))
    return list(found.values())


def fault(case: Case, way: Way, weight: WeightMatrix, count: int) -> str | None:
    """Whether the first and the last row have other bits than alone."""
    x, scale, _, residual = operands_of(case, weight)
    x, residual = x[:count], residual[:count]
    with way.used():
        whole = case.call(x, scale, weight, residual)
    for row in (slice(0, 1), slice(count - 1, count)):
        if not torch.equal(case.call(x[row], scale, weight, residual[row]), whole[row]):
            return f"bits of row {row.start} of {count} differ"
    return None


def timed(case: Case, copies: list[WeightMatrix], count: int) -> Iterator[dict[str, Any]]:
    for way in ways(case, tiles.padded_rows(count)):
        said: dict[str, Any] = {"way": way.name, "n": way.n, "cut": asdict(way.cut)}
        try:
            said["fault"] = fault(case, way, copies[0], count)
            with way.used():
                said["us"] = round(measure(case, copies, count) * 1e6, 2)
        except Exception as error:
            said["fault"] = f"{type(error).__name__}: {str(error)[-200:]}"
        yield said


def line(case: Case, count: int, found: list[dict[str, Any]]) -> str:
    def told(way: dict[str, Any]) -> str:
        cut = way["cut"]
        shape = f"{cut['block_r']},{cut['share']},{cut['warps']},{cut['stages']}"
        time_, wrong = way.get("us", "-"), f" WRONG: {way['fault']}" if way["fault"] else ""
        return f"{way['way']} ({shape}) {time_}{wrong}"

    name = f"{case.fusion:6} {case.kind:4} {case.rows:6}x{case.columns:<5} {count:2} rows"
    return f"{name}: " + "; ".join(map(told, sorted(found, key=lambda way: way.get("us", 1e9))))


def uses(model: str, kind: str) -> Counter[Case]:
    """How often a round multiplies by a weight of each shape."""
    hidden, nv, nh, kv, inner = MODELS[model]
    nets, attentions = MIXERS[model]
    counts: Counter[Case] = Counter()
    for fusion, rows, columns, times in (
        ("norm", 2 * 16 * 128 + 2 * nv * 128 + 2 * nv, hidden, nets),
        ("norm", nh * 512 + 2 * kv * 256, hidden, attentions),
        ("linear", hidden, nv * 128, nets),
        ("linear", hidden, nh * 256, attentions),
        ("swiglu", inner, hidden, nets + attentions),
        ("linear", hidden, inner, nets + attentions),
        ("head", VOCABULARY, hidden, 1),
    ):
        counts[Case(fusion, kind, rows, columns)] += times
    return counts


def totals(model: str, kind: str, count: int, results: dict[tuple[Case, int], Any]) -> str:
    sums: Counter[str] = Counter()
    for case, times in uses(model, kind).items():
        found = [way for way in results[case, count] if "us" in way and not way["fault"]]
        named = {way["way"]: way["us"] for way in found}
        sums["ships"] += named["ships"] * times
        # What ships may be the one before.
        sums["before"] += named.get("before", named["ships"]) * times
        sums["best"] += min(named.values()) * times
    told = ", ".join(f"{name} {sums[name] / 1e3:.3f}" for name in ("before", "ships", "best"))
    return f"{model} {kind} {count:2} rows, ms of all products of a round: {told}"


def better(results: dict[tuple[Case, int], Any]) -> dict[str, dict[str, Any]]:
    """Entries of a table, of the most rows that were timed for each padded number."""
    entries = {}
    for (case, count), found in sorted(results.items(), key=lambda item: item[0][1]):
        n = tiles.padded_rows(count)
        if n <= 8:
            continue
        right = [w for w in found if "us" in w and not w["fault"] and w["n"] == n]
        best = min(right, key=lambda way: way["us"], default=None)
        shape = (case.fusion, case.kind, case.rows, case.columns)
        key = f"{tiles.table_key(*shape, launch.capability())} {n}"
        entries.pop(key, None)
        if best and best["us"] < 0.98 * next(w["us"] for w in right if w["way"] == "ships"):
            entries[key] = best["cut"]
    return entries


def write(path: Path, entries: dict[str, dict[str, Any]]) -> None:
    table = json.loads((path if path.exists() else TABLE).read_text()) | entries
    rows = [f"{json.dumps(key)}: {json.dumps(table[key])}" for key in sorted(table)]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["27B", "9B"])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["bf16"])
    parser.add_argument("--rows", nargs="+", type=int, default=[4, 8, 12, 16, 20, 32])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    wanted = cases(asked.models, asked.formats)
    begun = time.perf_counter()
    workers = max(1, min(16, (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        work = jobs(wanted, asked.rows)
        failures = [said for said in pool.map(compile_one, work) if said]
    print(*failures, f"{len(work)} kernels in {time.perf_counter() - begun:.0f} s", sep="\n")
    pools, results = Pools(), {}
    for case in wanted:
        copies = pools.copies(case)
        for count in asked.rows:
            results[case, count] = list(timed(case, copies, count))
            print(line(case, count, results[case, count]), flush=True)
    for model in asked.models:
        for kind in asked.formats:
            print(*(totals(model, kind, count, results) for count in asked.rows), sep="\n")
    if asked.json:
        told = [asdict(case) | {"count": n, "ways": w} for (case, n), w in results.items()]
        asked.json.write_text(json.dumps(told))
    if asked.write:
        write(asked.write, better(results))
    print(f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
