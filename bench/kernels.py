"""Time the kernels of a decode round at real geometries, each against its own bytes.

Usage: python bench/kernels.py [--geometry 0.8b,4b,9b,27b] [--batch 1,8] [--context 512] [--json F]

Each op is captured in a graph as a chain of calls over operands that rotate past the L2 cache, so
that a call costs what it costs inside a round: its kernels and the boundaries between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from _kernel_times import (
    DEVICE,
    GEOMETRIES,
    HEAD,
    SIZE,
    VOCAB,
    Case,
    gdn_parts,
    normal,
    numbers,
    options,
    report,
    sets_of,
)

from ninfer_core.ops.contracts.values import AttentionMixer, KvCache, PagedRows


def gdn_case(ops: Any, name: str, batch: int) -> Case:
    heads, channels, mixer = gdn_parts(name)
    size = heads * SIZE * SIZE * 4
    sets = sets_of(2 * batch * size)
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
    sets = sets_of(batch * size)
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
    size = batch * VOCAB * 4
    sets = sets_of(size)
    logits = normal(sets, batch, VOCAB, dtype=torch.float32)
    return Case(
        f"argmax B={batch}",
        size,
        sets,
        lambda index: ops["argmax_rows"](logits[index], VOCAB - 300),
    )


def cases(ops: Any, asked: Any) -> Iterator[Callable[[], Iterator[Case]]]:
    for batch in asked.batch:
        yield partial(one, argmax_case, ops, batch)
        for name in asked.geometry:
            yield partial(one, gdn_case, ops, name, batch)
            for context in asked.context:
                if context < 50000 or batch == 1:
                    yield partial(one, attention_case, ops, name, batch, context)


def one(make: Callable[..., Case], *arguments: Any) -> Iterator[Case]:
    yield make(*arguments)


def main() -> None:
    from ninfer_ops_triton.backend import BACKEND

    parser = options(__doc__, *GEOMETRIES)
    parser.add_argument("--context", type=numbers, default=[512, 131072])
    asked = parser.parse_args()
    report(cases(BACKEND.ops, asked), asked.json)


if __name__ == "__main__":
    main()
