"""Time the kernels of a decode round at real geometries, each against its own bytes.

Usage: python bench/kernels.py [--geometry 0.8b,4b,9b,27b] [--batch 1,8] [--context 512] [--json F]

Each op is captured in a graph as a chain of calls over operands that rotate past the L2 cache, so
that a call costs what it costs inside a round: its kernels and the boundaries between them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import AttentionMixer, GdnMixer, KvCache, PagedRows

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
ROTATE_BYTES = 160 << 20
DEVICE = torch.device("cuda")


@dataclass(frozen=True, slots=True)
class Case:
    """One op over ``sets`` of operands, and the bytes that a call must move."""

    name: str
    bytes: int
    sets: int
    call: Callable[[int], object]


def seconds(case: Case) -> float:
    """Median seconds of one call inside a graph of many."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.inference_mode():
        for index in range(min(2, case.sets)):
            case.call(index)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for index in range(CALLS):
                case.call(index % case.sets)
        times = []
        for _ in range(12):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop) / 1e3 / CALLS)
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


def gdn_case(ops: Any, name: str, batch: int) -> Case:
    heads = GEOMETRIES[name][1]
    channels = 2 * KEY_HEADS * SIZE + heads * SIZE
    size = heads * SIZE * SIZE * 4
    sets = max(2, min(CALLS, ROTATE_BYTES // (2 * batch * size)))
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
    states = normal(sets, 2 * batch, heads, SIZE, SIZE, dtype=torch.float32)
    history = normal(sets, 2 * batch, 3, channels)
    stacked = normal(batch, channels + heads * SIZE + 2 * heads)
    slots = torch.arange(batch, device=DEVICE)

    def call(index: int) -> object:
        return ops["gdn_mix_step"](
            stacked, mixer, history[index], states[index], slots, slots + batch
        )

    return Case(f"{name} gdn_mix_step B={batch}", 2 * batch * size, sets, call)


def attention_case(ops: Any, name: str, batch: int, context: int) -> Case:
    _, _, heads, kv, _ = GEOMETRIES[name]
    pages = -(-context // 64)
    size = 2 * context * kv * HEAD * 2
    sets = max(1, min(8, ROTATE_BYTES // (batch * size)))
    keys, values = (normal(sets, batch * pages, 64, kv, HEAD) for _ in range(2))
    mixer = AttentionMixer(
        q_scale=torch.rand(HEAD, device=DEVICE),
        k_scale=torch.rand(HEAD, device=DEVICE),
        eps=1e-6,
        heads=heads,
        kv_heads=kv,
        head_size=HEAD,
    )
    tables = torch.randperm(batch * pages, device=DEVICE).to(torch.int32).view(batch, pages)
    lanes = torch.arange(batch, device=DEVICE, dtype=torch.int32)
    starts = torch.full_like(lanes, context - 1)
    rows = PagedRows(tables, lanes, starts, torch.ones_like(lanes), 1)
    stacked = normal(batch, heads * 2 * HEAD + 2 * kv * HEAD)
    cos, sin = (normal(batch, 32, dtype=torch.float32) for _ in range(2))
    places = tables.long()[:, -1] * 64 + (context - 1) % 64

    def call(index: int) -> object:
        cache = KvCache("bf16", keys[index], values[index])
        return ops["attention_mix_decode"](stacked, mixer, cos, sin, cache, rows, places)

    return Case(f"{name} attention B={batch} n={context}", batch * size, sets, call)


def argmax_case(ops: Any, batch: int) -> Case:
    logits = normal(4, batch, VOCAB, dtype=torch.float32)
    return Case(
        f"argmax B={batch}",
        batch * VOCAB * 4,
        4,
        lambda index: ops["argmax_rows"](logits[index], VOCAB - 300),
    )


def cases(
    ops: Any, names: list[str], batches: list[int], contexts: list[int]
) -> Iterator[Callable[[], Case]]:
    for batch in batches:
        yield lambda batch=batch: argmax_case(ops, batch)
        for name in names:
            yield lambda name=name, batch=batch: gdn_case(ops, name, batch)
            for context in contexts:
                if context < 50000 or batch == 1:
                    yield lambda name=name, batch=batch, context=context: attention_case(
                        ops, name, batch, context
                    )


def main() -> None:
    from ninfer_ops_triton.backend import BACKEND

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--geometry", default=",".join(GEOMETRIES))
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--context", default="512,131072")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    batches, contexts = (
        [int(v) for v in getattr(options, k).split(",")] for k in ("batch", "context")
    )
    rate = bandwidth()
    print(f"read bandwidth {rate / 1e12:.3f} TB/s")
    rows = []
    for make in cases(BACKEND.ops, options.geometry.split(","), batches, contexts):
        case = make()
        took = seconds(case)
        share = case.bytes / rate / took
        rows.append({"op": case.name, "us": took * 1e6, "bytes": case.bytes, "share": share})
        print(
            f"{case.name:40s} {took * 1e6:9.2f} us  {100 * share:5.1f} % of its bytes", flush=True
        )
    if options.json:
        report = {"device": torch.cuda.get_device_name(), "bandwidth": rate, "rows": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
