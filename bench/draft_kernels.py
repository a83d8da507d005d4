"""Time what speculation adds to the kernels of a round, at real geometries.

Usage: python bench/draft_kernels.py [--geometry 9b,27b] [--batch 1,8] [--rows 4,8,16]
                                     [--context 512,40000] [--json F]

As ``kernels.py``: chains of calls in a graph over operands that rotate past the L2 cache; rows and
records, which another kernel of the same round has just written, stay in it as they do there. For
the delta net's rows the single kernel stands beside the ops that it replaces; for the fold all
layers at once beside one after another (six layers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from _kernel_times import (
    DEVICE,
    KEY_HEADS,
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

from ninfer_core.ops.contracts.values import Candidates, GdnRecords, KvCache, PagedRows

FP32 = torch.float32
DRAFTER = (32, 8, 128)
"""Query heads, key/value heads and head size of published block drafters."""
WINDOW, RANK, TAKEN = 2048, 256, 16
FOLDED = 6
"""Layers of a fold."""


def records(*first: int, heads: int, channels: int) -> GdnRecords:
    return GdnRecords(
        inputs=normal(*first, channels),
        keys=normal(*first, KEY_HEADS, SIZE, dtype=FP32),
        updates=normal(*first, heads, SIZE, dtype=FP32),
        keep=torch.rand(*first, heads, device=DEVICE),
    )


def record_bytes(kept: GdnRecords) -> int:
    return sum(pool.nbytes for pool in (kept.inputs, kept.keys, kept.updates, kept.keep))


def verify_cases(ops: Any, name: str, batch: int, width: int) -> Iterator[Case]:
    heads, channels, mixer = gdn_parts(name)
    values = heads * SIZE
    kept = records(batch, width, heads=heads, channels=channels)
    stacked = normal(batch * width, channels + values + 2 * heads)
    # The state and the inputs before are read, records written, the output is as wide as values.
    read = batch * (heads * SIZE * SIZE * 4 + 3 * channels * 2) + stacked.nbytes
    size = read + record_bytes(kept) + batch * width * values * 2
    sets = sets_of(batch * heads * SIZE * SIZE * 4)
    states = normal(sets, batch, heads, SIZE, SIZE, dtype=FP32)
    history = normal(sets, batch, 3, channels)
    slots = torch.arange(batch, device=DEVICE)

    def fused(index: int) -> object:
        return ops["gdn_mix_verify"](
            stacked, mixer, history[index], states[index], slots, kept, settled=True
        )

    def parts(index: int) -> object:
        mixed, z, b, a = stacked.split([channels, values, heads, heads], dim=1)
        decay, beta = ops["gdn_gates"](a, b, mixer.decay_rate, mixer.dt_bias)
        qkv = ops["causal_conv_verify"](mixed, mixer.conv, history[index], slots, kept)
        out = ops["gdn_verify"](qkv, decay, beta, states[index], slots, KEY_HEADS, kept)
        gate = z.view(out.shape)
        return ops["gated_rms_norm"](out, gate, mixer.norm_scale, mixer.eps)

    yield Case(f"{name} verify B={batch} W={width} fused", size, sets, fused)
    yield Case(f"{name} verify B={batch} W={width} parts", size, sets, parts)


def fold_cases(ops: Any, name: str, batch: int, width: int) -> Iterator[Case]:
    heads, channels, _ = gdn_parts(name)
    state_bytes = FOLDED * batch * heads * SIZE * SIZE * 4
    sets = sets_of(2 * state_bytes)
    state = normal(sets, FOLDED, 2 * batch, heads, SIZE, SIZE, dtype=FP32)
    history = normal(sets, FOLDED, 2 * batch, 3, channels)
    kept = records(FOLDED, 2 * batch, width, heads=heads, channels=channels)
    pools = kept.inputs, kept.keys, kept.updates, kept.keep
    slots = torch.arange(batch, device=DEVICE)
    counts = torch.full((batch,), width, dtype=torch.int32, device=DEVICE)
    targets = slots + batch
    # States and inputs before come from slots and go to targets; of records half have a use.
    size = 2 * (state_bytes + FOLDED * batch * 3 * channels * 2) + record_bytes(kept) // 2

    def whole(index: int) -> object:
        return ops["gdn_fold_layers"](history[index], state[index], slots, kept, counts, targets)

    def each(index: int) -> object:
        for layer in range(FOLDED):
            own = GdnRecords(*(pool[layer] for pool in pools))
            ops["causal_conv_fold"](history[index, layer], slots, own, counts, targets)
            ops["gdn_fold"](state[index, layer], slots, own, counts, targets)
        return None

    yield Case(f"{name} fold B={batch} W={width} together", size, sets, whole)
    yield Case(f"{name} fold B={batch} W={width} by layer", size, sets, each)


def block_cases(ops: Any, batch: int, width: int, context: int) -> Iterator[Case]:
    for window in (None, WINDOW):
        yield block_case(ops, batch, width, context, window)


def block_case(ops: Any, batch: int, width: int, context: int, window: int | None) -> Case:
    heads, kv, head = DRAFTER
    pages, seen = -(-(context + width) // 64), min(context, window or context)
    size = 2 * batch * seen * kv * head * 2
    sets = sets_of(size)
    keys, values = (normal(sets, batch * pages, 64, kv, head) for _ in range(2))
    tables = torch.randperm(batch * pages, device=DEVICE).to(torch.int32).view(batch, pages)
    lanes = torch.arange(batch, device=DEVICE, dtype=torch.int32)
    starts, live = torch.full_like(lanes, context), torch.full_like(lanes, width)
    rows, q = PagedRows(tables, lanes, starts, live, width), normal(batch * width, heads, head)

    def call(index: int) -> object:
        cache = KvCache("bf16", keys[index], values[index])
        return ops["block_attention"](q, cache, rows, head**-0.5, causal=False, window=window)

    return Case(f"block B={batch} W={width} n={context} window={window}", size, sets, call)


def selector_cases(ops: Any, batch: int, width: int) -> Iterator[Case]:
    rows = batch * (width - 1)
    sets = sets_of(rows * VOCAB * 4)
    logits = normal(sets, rows, VOCAB, dtype=FP32)
    found = ops["draft_candidates"](logits[0], TAKEN, VOCAB - 243)
    hidden, tables = normal(rows, RANK), [normal(VOCAB, RANK) for _ in range(2)]
    anchors = torch.arange(batch, dtype=torch.int32, device=DEVICE)
    drawn = rows * TAKEN * 2 * RANK * 2
    walks = sets_of(drawn)
    # Other tokens in every set: their rows of the tables are what a walk reads.
    ids = torch.randint(VOCAB - 243, (walks, *found.ids.shape), device=DEVICE, dtype=torch.int32)
    x, dynamic, base = normal(batch * width, 5120), normal(batch * width, 1280), normal(2, 2, 5120)
    base = base.float()

    def best(index: int) -> object:
        return ops["draft_candidates"](logits[index], TAKEN, VOCAB - 243)

    def walk(index: int) -> object:
        taken = Candidates(ids[index], found.values)
        return ops["draft_walk"](taken, hidden, anchors, *tables)

    def convolve(_: int) -> object:
        return ops["block_conv"](x, dynamic, base, 0, width)

    yield Case(f"candidates B={batch} K={width - 1}", rows * VOCAB * 4, sets, best)
    yield Case(f"walk B={batch} K={width - 1}", drawn, walks, walk)
    yield Case(f"block_conv B={batch} W={width}", 2 * x.numel() * 2, 1, convolve)


def cases(ops: Any, asked: Any) -> Iterator[Callable[[], Iterator[Case]]]:
    for batch in asked.batch:
        for width in asked.rows:
            for name in asked.geometry:
                yield partial(verify_cases, ops, name, batch, width)
                yield partial(fold_cases, ops, name, batch, width)
            for context in asked.context:
                yield partial(block_cases, ops, batch, width, context)
            yield partial(selector_cases, ops, batch, width)


def main() -> None:
    from ninfer_ops_triton.backend import BACKEND

    parser = options(__doc__, "9b", "27b")
    parser.add_argument("--rows", type=numbers, default=[4, 8, 16])
    parser.add_argument("--context", type=numbers, default=[512, 40000])
    asked = parser.parse_args()
    report(cases(BACKEND.ops, asked), asked.json)


if __name__ == "__main__":
    main()
