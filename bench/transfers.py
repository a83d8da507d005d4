"""Bandwidth of pages and state images between the device and pinned host memory.

Usage: python bench/transfers.py [--geometry 0.8b,9b] [--programs 8,16,32,64] [--json F]

Copies are timed by the lane's events, alone and both ways at once, against one plain copy of the
same bytes between contiguous memory. Pages lie at random places.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ninfer_core.device.base import LaneRole
from ninfer_core.device.cuda.open import open_device
from ninfer_core.ops.contracts.values import KvCache
from ninfer_core.store.host_arena import Extent, HostArena
from ninfer_ops_triton import transfers as ops
from ninfer_qwen3_5.model.state import GdnState, ModelState
from ninfer_qwen3_5.program.transfers import Transfer, Transfers

GEOMETRIES = {"0.8b": (18, 16, 6, 2), "4b": (24, 32, 8, 4), "9b": (24, 32, 8, 4)}
"""Gated delta nets and their value heads, attention layers and their key/value heads."""

SIZE, HEAD, KEY_HEADS, SLOTS, PAGES = 128, 256, 16, 6, 1024
HOST_BYTES = 4 << 30
new_event: Any = torch.cuda.Event
REPEATS = 9
Figures = dict[str, float]
Move = Callable[[int | None, list[int], list[Extent]], Transfer]


def model_state(name: str, kv_format: str) -> ModelState:
    nets, heads, layers, kv = GEOMETRIES[name]
    channels = 2 * KEY_HEADS * SIZE + heads * SIZE
    dtype = torch.bfloat16 if kv_format == "bf16" else torch.int8

    def cache() -> KvCache:
        planes = [torch.zeros(PAGES, 64, kv, HEAD, dtype=dtype, device="cuda") for _ in "kv"]
        if kv_format == "int8":
            planes += [torch.zeros(PAGES, 64, kv, HEAD // 64, device="cuda") for _ in "kv"]
        return KvCache(kv_format, *planes)

    history = torch.zeros(nets, SLOTS, 3, channels, dtype=torch.bfloat16, device="cuda")
    recurrent = torch.zeros(nets, SLOTS, heads, SIZE, SIZE, device="cuda")
    return ModelState(tuple(cache() for _ in range(layers)), GdnState(history, recurrent))


def seconds(lane: Any, call: Callable[[], object]) -> float:
    """Median time of what ``call`` enqueues on ``lane``."""
    times = []
    for _ in range(REPEATS):
        start, stop = (new_event(enable_timing=True) for _ in range(2))
        start.record(lane.torch_stream)
        call()
        stop.record(lane.torch_stream)
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return float(sorted(times)[len(times) // 2])


def plain(device: Any, host: torch.Tensor, size: int) -> Figures:
    """One copy of ``size`` bytes each way."""
    there = torch.empty(size, dtype=torch.uint8, device="cuda")
    figures = {}
    ways = {LaneRole.COPY_OUT: (host[:size], there), LaneRole.COPY_IN: (there, host[:size])}
    for role, (target, source) in ways.items():
        lane = device.lane(role)
        with torch.cuda.stream(lane.torch_stream):
            took = seconds(lane, partial(target.copy_, source, non_blocking=True))
        figures[f"plain {role.value}"] = size / took / 1e9
    return figures


def measure(device: Any, host: torch.Tensor, moves: Transfers) -> Figures:
    """GB/s of a state, of 1, 16 and 512 pages, and of 512 pages both ways at once."""
    arena = HostArena("host_bytes", host.numel())
    order = torch.randperm(PAGES).tolist()
    out, into = (device.lane(role) for role in (LaneRole.COPY_OUT, LaneRole.COPY_IN))
    state, *places = (
        extent(arena, size) for size in [moves.slot_bytes, *[moves.page_bytes] * 1024]
    )

    def rate(lane: Any, move: Move, slot: int | None, count: int) -> float:
        given = [*([] if slot is None else [state]), *places[:count]]
        size = count * moves.page_bytes + (slot is not None) * moves.slot_bytes
        return size / seconds(lane, partial(move, slot, order[:count], given)) / 1e9

    figures = {"state out": rate(out, moves.save, 0, 0), "state in": rate(into, moves.load, 1, 0)}
    for count in (1, 16, 512):
        figures[f"{count} pages out"] = rate(out, moves.save, None, count)
        figures[f"{count} pages in"] = rate(into, moves.load, None, count)

    def both() -> None:
        moves.load(None, order[512:], places[512:])
        moves.save(None, order[:512], places[:512]).hold_back(into)

    figures["512 pages both ways, sum"] = 2 * 512 * moves.page_bytes / seconds(into, both) / 1e9
    return figures


def extent(arena: HostArena, size: int) -> Extent:
    made = arena.allocate(size)
    if made is None:
        raise SystemExit(f"the host arena of {arena.capacity:,} bytes is too small")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--geometry", default="0.8b,9b")
    parser.add_argument("--programs", default="8,16,32,64")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results: dict[str, Any] = {}
    for name in given.geometry.split(","):
        for kv_format in ("bf16", "int8"):
            for programs in map(int, given.programs.split(",")):
                key = f"{name} {kv_format}, {programs} programs"
                results[key] = run(name, kv_format, programs)
                shown = ", ".join(f"{what} {rate:.1f}" for what, rate in results[key].items())
                print(f"{key}: GB/s {shown}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


def run(name: str, kv_format: str, programs: int) -> Figures:
    device = open_device(0)
    ops.PROGRAMS = programs
    try:
        with device.lane(LaneRole.COMPUTE).enter():
            state = model_state(name, kv_format)
            host = device.pinned("host_tier", HOST_BYTES).take("m", (HOST_BYTES,), torch.uint8)
            table: Any = SimpleNamespace(**ops.OPS)
            moves = Transfers(table, state, device, host, 512)
            moves.warm_up()
            figures = measure(device, host, moves)
            return figures | plain(device, host, 256 << 20)
    finally:
        device.close()


if __name__ == "__main__":
    main()
