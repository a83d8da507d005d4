"""Bandwidth of pages and state images between the device and pinned host memory.

Usage: python bench/transfers.py [--geometry 9b] [--seconds 20] [--json F]

Pages of one GB, at random places, are moved each way alone and while another lane reads weights, as
decoding does, against one plain copy of as many bytes; ``slowdown`` is what the reading lane takes
beside the transfers over what it takes alone. ``host us`` is what a transfer costs the thread that
enqueues it, for each copy. The last case has planes too far apart for a pitch of 31 bits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ninfer_core.device.base import LaneRole
from ninfer_core.device.cuda.open import open_device
from ninfer_core.ops.contracts.values import KvCache
from ninfer_core.store.host_arena import Extent, HostArena
from ninfer_ops_triton.backend import BACKEND
from ninfer_qwen3_5.model.state import GdnState, ModelState
from ninfer_qwen3_5.program.transfers import Transfer, Transfers

GEOMETRIES = {"0.8b": (18, 16, 6, 2), "4b": (24, 32, 8, 4), "9b": (24, 32, 8, 4)}
"""Gated delta nets and their value heads, attention layers and their key/value heads."""

SIZE, HEAD, KEY_HEADS, SLOTS, PAGES, FAR_PAGES = 128, 256, 16, 6, 2048, 16896
MOVED = 1 << 30
HOST_BYTES = 3 << 29
WEIGHTS = 4 << 30
"""Bytes that one step of the reading lane reads, a multiple of what the L2 cache holds."""

REPEATS = 5
Figures = dict[str, float]
Move = Callable[[int | None, list[int], list[Extent]], Transfer]
new_event: Any = torch.cuda.Event


def model_state(device: Any, name: str, kv_format: str, pages: int) -> ModelState:
    """The planes lie one behind the other, as the engine's do."""
    nets, heads, layers, kv = GEOMETRIES[name]
    channels = 2 * KEY_HEADS * SIZE + heads * SIZE
    dtype = torch.bfloat16 if kv_format == "bf16" else torch.int8
    row = 64 * kv * (HEAD * dtype.itemsize + (HEAD // 64 * 4 if kv_format == "int8" else 0))
    arena = device.arena("kv", 2 * layers * pages * row + (1 << 20))

    def cache(layer: int) -> KvCache:
        shape = (pages, 64, kv, HEAD)
        planes = [arena.take(f"{layer}.{which}", shape, dtype) for which in "kv"]
        if kv_format == "int8":
            scales = (*shape[:3], HEAD // 64)
            planes += [arena.take(f"{layer}.{which}s", scales, torch.float32) for which in "kv"]
        return KvCache(kv_format, *planes)

    history = torch.zeros(nets, SLOTS, 3, channels, dtype=torch.bfloat16, device="cuda")
    recurrent = torch.zeros(nets, SLOTS, heads, SIZE, SIZE, device="cuda")
    return ModelState(tuple(cache(n) for n in range(layers)), GdnState(history, recurrent))


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
    return statistics.median(times)


class Reader:
    """Reads weights on the compute lane, a graph of many kernels at a time."""

    def __init__(self, device: Any) -> None:
        self._lane = device.lane(LaneRole.COMPUTE)
        self._weights = torch.zeros(64, WEIGHTS // 128, dtype=torch.bfloat16, device="cuda")
        self._sums = torch.zeros(64, dtype=torch.float32, device="cuda")
        self._read()
        self.step = device.capture(self._read, self._lane).replay

    def _read(self) -> None:
        for row, total in zip(self._weights, self._sums, strict=True):
            torch.sum(row, 0, dtype=torch.float32, out=total)

    def alone(self) -> float:
        return seconds(self._lane, self.step)

    def beside(self, move: Callable[[], Transfer]) -> tuple[float, float]:
        """Seconds of the steps that began and ended while transfers ran, and of a transfer."""
        steps, moves = [], []
        for _ in range(REPEATS):
            torch.cuda.synchronize()
            transfer, began, marks = move(), time.perf_counter(), [self._mark()]
            done = False
            while not done:
                self.step()
                marks.append(self._mark())
                marks[-2].synchronize()
                done = transfer.done()
            moves.append(time.perf_counter() - began)
            torch.cuda.synchronize()
            times = [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]
            steps += times[:-1] or times
        return statistics.median(steps), statistics.median(moves)

    def _mark(self) -> Any:
        event = new_event(enable_timing=True)
        event.record(self._lane.torch_stream)
        return event


def plain(device: Any, host: torch.Tensor, size: int) -> Figures:
    """GB/s of one copy of ``size`` bytes each way."""
    there = torch.empty(size, dtype=torch.uint8, device="cuda")
    figures = {}
    ways = {"out": (LaneRole.COPY_OUT, host[:size], there)}
    ways["in"] = (LaneRole.COPY_IN, there, host[:size])
    for way, (role, target, source) in ways.items():
        lane = device.lane(role)
        with torch.cuda.stream(lane.torch_stream):
            took = seconds(lane, partial(target.copy_, source, non_blocking=True))
        figures[f"plain {way}"] = size / took / 1e9
    return figures


def measure(device: Any, transfers: Transfers, pages: int) -> Figures:
    """See the module."""
    arena = HostArena("host_bytes", HOST_BYTES)
    count = MOVED // transfers.page_bytes
    order = torch.randperm(pages)[:count].tolist()
    state, *places = (
        extent(arena, size) for size in [transfers.slot_bytes, *[transfers.page_bytes] * count]
    )
    lanes = {"out": transfers.lane_out, "in": transfers.lane_in}
    ways: dict[str, Move] = {"out": transfers.save, "in": transfers.load}
    reader, figures = Reader(device), {}
    quiet = reader.alone()
    figures["reading"] = WEIGHTS / quiet / 1e9
    for way, move in ways.items():
        lane = lanes[way]
        whole = partial(move, None, order, places)
        figures[f"state {way}"] = (
            transfers.slot_bytes
            / 1e9
            / seconds(
                lane,
                lambda move=move: move(1, [], [state]).wait(),  # type: ignore[misc]
            )
        )
        torch.cuda.synchronize()
        took = seconds(lane, lambda whole=whole: whole().wait())  # type: ignore[misc]
        figures[f"pages {way}"] = count * transfers.page_bytes / took / 1e9
        started = time.perf_counter()
        whole()._enqueue_all()
        copies = count * len(transfers._pages.runs)
        figures[f"host us {way}"] = 1e6 * (time.perf_counter() - started) / copies
        step, took = reader.beside(whole)
        figures[f"pages {way} beside reading"] = count * transfers.page_bytes / took / 1e9
        figures[f"slowdown {way}"] = step / quiet
    return figures


def extent(arena: HostArena, size: int) -> Extent:
    made = arena.allocate(size)
    if made is None:
        raise SystemExit(f"the host arena of {arena.capacity:,} bytes is too small")
    return made


def run(name: str, kv_format: str, pages: int) -> Figures:
    device = open_device(0)
    try:
        with device.lane(LaneRole.COMPUTE).enter():
            state = model_state(device, name, kv_format, pages)
            host = device.pinned("host_tier", HOST_BYTES).take("m", (HOST_BYTES,), torch.uint8)
            table: Any = SimpleNamespace(**BACKEND.ops)
            transfers = Transfers(table, state, device, host, pages)
            figures = measure(device, transfers, pages) | plain(device, host, MOVED)
            for way in ("out", "in"):
                for what in (f"pages {way}", f"pages {way} beside reading"):
                    figures[f"share, {what}"] = figures[what] / figures[f"plain {way}"]
            figures["copies of a page"] = len(transfers._pages.runs)
            return figures
    finally:
        device.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--geometry", default="9b")
    parser.add_argument("--seconds", type=float, default=20.0, help="start no case after these")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    started, results = time.monotonic(), {}
    for name in given.geometry.split(","):
        for kv_format, pages in (("bf16", PAGES), ("bf16", FAR_PAGES), ("int8", PAGES)):
            key = f"{name} {kv_format}, {pages} pages"
            if time.monotonic() - started > given.seconds:
                print(f"{key}: left out, {given.seconds:g} s are over", flush=True)
                continue
            results[key] = run(name, kv_format, pages)
            shown = ", ".join(f"{what} {figure:.3g}" for what, figure in results[key].items())
            print(f"{key}: {shown}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
