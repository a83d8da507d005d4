"""Kernels timed one by one: chains of calls in a graph, each against its own bytes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import GdnMixer

GEOMETRIES = {
    "0.8b": (1024, 16, 8, 2, 3584),
    "4b": (2560, 32, 16, 4, 9216),
    "9b": (4096, 32, 16, 4, 12288),
    "27b": (5120, 48, 24, 4, 17408),
}
"""Hidden size, value heads, query heads, key/value heads, inner size."""

VOCAB = 248320
KEY_HEADS, SIZE, HEAD = 16, 128, 256
CALLS = 24
ROTATE_BYTES = 192 << 20
"""Of all sets together: three times the L2 cache of an H200, and more."""

MOST_SETS = 1024
"""Of operands too small to fill it: their calls are bound by the launch, not by what they read."""

DEVICE = torch.device("cuda")


@dataclass(frozen=True, slots=True)
class Case:
    """One op over ``sets`` of operands, and the bytes that a call must move."""

    name: str
    bytes: int
    sets: int
    call: Callable[[int], object]


def numbers(text: str) -> list[int]:
    """``1,8`` as an option gives it."""
    return [int(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    """``9b,27b`` as an option gives it."""
    return text.split(",")


def options(doc: str | None, *geometries: str) -> argparse.ArgumentParser:
    """What every script about kernels takes."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--geometry", type=names, default=list(geometries))
    parser.add_argument("--batch", type=numbers, default=[1, 8])
    parser.add_argument("--json", type=Path)
    return parser


def sets_of(size: int) -> int:
    """How many operands of ``size`` bytes do not fit the L2 cache together; two at least."""
    return min(MOST_SETS, max(2, -(-ROTATE_BYTES // size)))


def report(makers: Iterable[Callable[[], Iterable[Case]]], path: Path | None) -> None:
    """Time the cases of each maker, whose operands go before the next one makes its own; print
    them, and write them to ``path`` if there is one."""
    rate, rows = bandwidth(), []
    print(f"read bandwidth {rate / 1e12:.3f} TB/s")
    for make in makers:
        for case in make():
            took = seconds(case)
            share = case.bytes / rate / took
            rows.append({"op": case.name, "us": took * 1e6, "bytes": case.bytes, "share": share})
            line = f"{case.name:44s} {took * 1e6:9.2f} us  {100 * share:5.1f} % of its bytes"
            print(line, flush=True)
    if path is not None:
        facts = {"device": torch.cuda.get_device_name(), "bandwidth": rate, "rows": rows}
        path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def seconds(case: Case) -> float:
    """Median seconds of one call inside a graph of many, in which every set has its turn."""
    calls = max(CALLS, case.sets)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.inference_mode():
        for index in range(min(2, case.sets)):
            case.call(index)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for index in range(calls):
                case.call(index % case.sets)
        times = []
        for _ in range(12):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop) / 1e3 / calls)
    return sorted(times)[len(times) // 2]


def bandwidth() -> float:
    """Bytes a second of a plain sum over 4 GB."""
    values = torch.empty(1 << 30, dtype=torch.float32, device=DEVICE).normal_()
    best = min(_timed(lambda: torch.sum(values)) for _ in range(8))
    return values.numel() * 4 / best


def _timed(call: Callable[[], object]) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=DEVICE).normal_(std=scale)


def gdn_parts(name: str) -> tuple[int, int, GdnMixer]:
    """Value heads, channels and a mixer."""
    heads = GEOMETRIES[name][1]
    channels = 2 * KEY_HEADS * SIZE + heads * SIZE
    mixer = GdnMixer(
        conv=normal(4, channels, dtype=torch.float32),
        decay_rate=torch.rand(heads, device=DEVICE),
        dt_bias=torch.rand(heads, device=DEVICE),
        norm_scale=torch.rand(SIZE, device=DEVICE),
        eps=1e-6,
        key_heads=KEY_HEADS,
        key_size=SIZE,
        value_heads=heads,
        value_size=SIZE,
    )
    return heads, channels, mixer
