"""Choose the tiles of the decode products on this GPU, and write them to a table.

Usage: python bench/tune_linear.py [--models 0.8B 4B 9B 27B] [--formats bf16 fp8 q4] [--out FILE]
       [--every]

For each weight of the published models, fused as a decode round runs it, a few ways to cut the
product are timed for one and for eight activation rows in CUDA graphs, over copies of the weight
that together do not fit the L2 cache. The one with the least sum of both times whose results are
right, and whose bits of a row are the same in every company, is written to FILE (``tiles.json`` of
the backend when left out; entries of other shapes stay): first among the plain candidates, then
again where a variation of the best is faster, so that an early end keeps what was chosen. Prints a
line for each weight: the choice, its time, and its share of what a kernel that only reads reaches
in the same run. Kernels are compiled beforehand in parallel processes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _products import FORMATS, MODELS, Case, Pools, blank, cases, fault, operands_of, use

from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_ops_triton import launch, tiles
from ninfer_ops_triton.bench.bandwidth import read_bandwidth
from ninfer_ops_triton.tiles import Tile

TABLE = Path(tiles.__file__).with_name("tiles.json")
COUNTS = (1, 8)
"""Activation rows that a choice is timed for."""

CHECKED = (9, 17)
"""Of those that a choice is checked with, what COUNTS leaves to compile."""


Jobs = list[tuple[Case, Tile, int]]


class Timed(NamedTuple):
    """Seconds of a tile for each of COUNTS."""

    times: tuple[float, ...]
    tile: Tile


def compile_one(job: tuple[Case, Tile, int]) -> str | None:
    """Leave a kernel in Triton's cache on disk; what went wrong, or None."""
    case, tile, count = job
    use(tile)

    def warm(kernel: Any, grid: Any, args: Any, options: Any) -> None:
        kernel.warmup(*args, grid=grid, **options)

    launch.observers[:] = [warm]
    try:
        with launch.dry_run():
            case.call(*blank(case, count))
    except Exception as error:
        return f"{case} {tile}: {type(error).__name__}: {str(error)[-300:]}"
    return None


def compile_all(pool: ProcessPoolExecutor, wanted: Jobs) -> None:
    """One job of each kernel that Triton tells apart."""
    distinct = {}
    for case, tile, count in wanted:
        facts = (
            case.fusion, case.kind, tile.parts(case.columns), case.columns % tile.block_k == 0,
            case.columns % 16, case.rows % 16, case.columns // 64 % 16,
        )  # fmt: skip
        company = (count == 1, tiles.padded_rows(count))
        distinct.setdefault((facts, tile, company), (case, tile, count))
    start = time.perf_counter()
    failures = [said for said in pool.map(compile_one, distinct.values()) if said]
    print("\n".join([*failures, f"compiled {len(distinct)} kernels in "
                     f"{time.perf_counter() - start:.1f} s"]), flush=True)  # fmt: skip


def best_time(enqueue: Callable[[], None], launches: int, replays: int = 5) -> float:
    """Seconds of one launch: the best of several replays of a graph of all of them."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        enqueue()
        stream.synchronize()
        graph.capture_begin()
        enqueue()
        graph.capture_end()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 2)]
    for mark in marks:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    spans = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return min(spans[1:]) / 1e3 / launches


def bandwidth() -> float:
    """Bytes a second of a kernel that only reads."""
    return float(read_bandwidth(torch.cuda.current_device())["bytes_per_second"])


def measure(case: Case, copies: list[WeightMatrix], count: int) -> float:
    """Seconds of the present tile."""
    x = torch.randn(count, case.columns, device="cuda").bfloat16()
    scale = torch.rand(case.columns, device="cuda") + 0.5
    residual = torch.randn(count, case.rows, device="cuda").bfloat16()
    launches = max(len(copies), min(32, 1 + (256 << 20) // case.rows // case.columns))

    product = case.ready(x, scale, residual)

    def enqueue() -> None:
        for index in range(launches):
            product(copies[index % len(copies)])

    return best_time(enqueue, launches)


def timed(case: Case, copies: list[WeightMatrix], among: list[Tile]) -> list[Timed]:
    """Those that run, the fastest first."""
    found = []
    for tile in among:
        use(tile)
        try:
            found.append(Timed(tuple(measure(case, copies, count) for count in COUNTS), tile))
        except Exception as error:
            print(f"  {tile}: {type(error).__name__}: {str(error)[-200:]}", flush=True)
    return sorted(found, key=together)


def together(entry: Timed) -> float:
    return sum(entry.times)


def varied(kind: str, found: list[Timed]) -> list[Tile]:
    """The fastest with other ways to begin before its inputs are there, and with fewer
    registers."""
    ways = [(0, 1), (4, 1), (0, 0), (4, 0)]
    if kind != "q4" and found[0].tile.split == 1:
        ways += [(0, 2), (0, 4), (0, 8)]
    tried = []
    for _, tile in found[:1]:
        others = [replace(tile, ahead=ahead, early=early) for ahead, early in ways]
        limits = {"bf16": (80, 112), "fp8": (64, 104), "q4": (80, 96)}[kind]
        others += [replace(tile, registers=count) for count in limits]
        tried += [other for other in others if other != tile]
    return tried


def settle(case: Case, copies: list[WeightMatrix], found: list[Timed]) -> Tile | None:
    """The fastest that is right."""
    operands = operands_of(case, copies[0])
    for _, tile in found:
        use(tile)
        said = fault(case, operands)
        if said is None:
            return tile
        print(f"  {tile}: {said}", flush=True)
    return None


def described(tile: Tile) -> str:
    shape = (tile.block_r, tile.block_k, tile.groups, tile.split, tile.warps, tile.stages,
             tile.ahead, f"early {tile.early}", tile.registers)  # fmt: skip
    return str(shape)


def candidate(entry: Timed) -> str:
    times = " + ".join(f"{t * 1e6:.2f}" for t in entry.times)
    return f"  {times} us {described(entry.tile)}\n"


def line(case: Case, tile: Tile, copies: list[WeightMatrix], peak: float) -> str:
    total = sum(plane.nbytes for plane in copies[0].planes.values())
    use(tile)
    times = {count: measure(case, copies, count) for count in (1, 8, 16, 32)}
    rates = ", ".join(f"{count} rows {t * 1e6:.2f} us" for count, t in times.items())
    share = total / times[1] / peak
    shape = f"{case.rows:6}x{case.columns:<5} {described(tile):44}"
    return (
        f"{case.fusion:6} {case.kind:4} {shape} {rates}; "
        f"{total / times[1] / 1e9:.0f} GB/s, {share:.0%}"
    )


def write(path: Path, chosen: dict[str, Tile]) -> None:
    """Beside the file first, so that an end at any time leaves a whole one."""
    table = json.loads(path.read_text()) if path.exists() else json.loads(TABLE.read_text())
    for key, tile in chosen.items():
        table[key] = {name: x for name, x in asdict(tile).items() if name not in tiles.RULED}
    rows = [f"{json.dumps(key)}: {json.dumps(table[key])}" for key in sorted(table)]
    beside = path.with_suffix(".part")
    beside.write_text("{\n" + ",\n".join(rows) + "\n}\n" if rows else "{}\n")
    beside.replace(path)


def keep(path: Path, case: Case, copies: list[WeightMatrix], found: list[Timed]) -> Tile | None:
    """Write the choice of a case; None where nothing was right."""
    tile = settle(case, copies, found)
    if tile is not None:
        capability = torch.cuda.get_device_capability()
        key = tiles.table_key(case.fusion, case.kind, case.rows, case.columns, capability)
        write(path, {key: tile})
    return tile


def jobs(among: dict[Case, list[Tile]], counts: tuple[int, ...]) -> Jobs:
    return [(case, tile, n) for case, found in among.items() for tile in found for n in counts]


def best(times: dict[Case, list[Timed]]) -> dict[Case, list[Tile]]:
    return {case: [entry.tile for entry in found[:1]] for case, found in times.items()}


def searched(pool: ProcessPoolExecutor, pools: Pools, wanted: list[Case], path: Path) -> Any:
    """Times by case, of plain candidates and variations, the fastest first; what is best of the
    plain ones is in the file already."""
    times = {case: timed(case, pools.copies(case), case.candidates()) for case in wanted}
    others = {case: varied(case.kind, found) for case, found in times.items()}
    compile_all(pool, jobs(others, COUNTS) + jobs(best(times), CHECKED))
    for case, found in times.items():
        keep(path, case, pools.copies(case), found)
    for case, found in times.items():
        found += timed(case, pools.copies(case), others[case])
        found.sort(key=together)
    compile_all(pool, jobs(best(times), CHECKED))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--out", type=Path, default=TABLE)
    parser.add_argument("--every", action="store_true", help="print the time of every candidate")
    options = parser.parse_args()
    wanted = cases(options.models, options.formats)
    workers = max(1, min(16, (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        compile_all(pool, jobs({case: case.candidates() for case in wanted}, COUNTS))
        peak = bandwidth()
        print(f"{torch.cuda.get_device_name()}, reading alone {peak / 1e9:.0f} GB/s", flush=True)
        pools = Pools()
        times = searched(pool, pools, wanted, options.out)
    written = 0
    for case, found in times.items():
        copies = pools.copies(case)
        tile = keep(options.out, case, copies, found)
        if options.every:
            print("".join(map(candidate, found)), end="")
        if tile is not None:
            written += 1
            print(line(case, tile, copies, peak), flush=True)
    print(f"wrote {written} of {len(wanted)} choices to {options.out}")


if __name__ == "__main__":
    main()
