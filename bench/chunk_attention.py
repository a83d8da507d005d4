"""Attention of a short chunk deep in its context: in one split, in several, or by decode's kernels.

Usage: python bench/chunk_attention.py [--models 0.8B 9B] [--rows 16 32 64 128 256]
       [--depths 0 4096 28672 57344] [--repeats 20]

``whole``: the prompt's kernel with a program for each key/value head and tile of rows, which reads
all tokens before it: few rows leave most of the device idle. ``split``: the same with the tokens
split as ``attention_prefill.splits_of`` says (``splits``; of 1 it is the same as whole), and their
joining. ``decode``: the kernels of the decode route, which split the tokens too, and read them once
for every few rows. Milliseconds of one layer, bf16, and how far the results of the last two are
from those of the first. ``attention_prefill.FEW_ROWS`` is the most rows of the decode route.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from _products import MODELS

from ninfer_core.ops.contracts.values import PAGE_TOKENS, KvCache, PagedRows
from ninfer_ops_triton import attention_prefill, launch
from ninfer_ops_triton.launch import INTERPRET

SIZE = 256
"""Of a head."""
DEVICE = "cpu" if INTERPRET else "cuda"


def operands(
    heads: int, kv_heads: int, rows: int, depth: int
) -> tuple[torch.Tensor, KvCache, PagedRows]:
    pages = -(-(depth + rows) // PAGE_TOKENS)
    shape = (pages, PAGE_TOKENS, kv_heads, SIZE)
    keys, values = (torch.randn(shape, device=DEVICE).bfloat16() for _ in range(2))
    q = torch.randn(rows, heads, SIZE, device=DEVICE).bfloat16()
    table = torch.randperm(pages, device=DEVICE).int().view(1, -1)
    at = [torch.tensor([word], dtype=torch.int32, device=DEVICE) for word in (0, depth, rows)]
    return q, KvCache("bf16", keys, values), PagedRows(table, *at, rows)


MOST = attention_prefill.MOST_SPLITS
WAYS = {"whole": (0, 1), "split": (0, MOST), "decode": (1 << 30, MOST)}
"""Rows up to which the decode route is taken, and most splits."""


def attend(way: str, given: tuple[torch.Tensor, KvCache, PagedRows]) -> torch.Tensor:
    attention_prefill.FEW_ROWS, attention_prefill.MOST_SPLITS = WAYS[way]
    return attention_prefill.paged_prefill_attention(*given, SIZE**-0.5)


def splits(given: tuple[torch.Tensor, KvCache, PagedRows]) -> int:
    """Of the chunk, as the launch of its kernel has them."""
    grids: list[tuple[int, ...]] = []

    def observe(_: object, grid: tuple[int, ...], *rest: object) -> None:
        grids.append(grid)

    launch.observers.append(observe)
    try:
        attend("split", given)
    finally:
        launch.observers.remove(observe)
    return grids[0][2]


def milliseconds(way: str, given: tuple[torch.Tensor, KvCache, PagedRows], repeats: int) -> float:
    took = []
    for _ in range(repeats + 2):
        wait()
        began = time.perf_counter()
        for _ in range(4):
            attend(way, given)
        wait()
        took.append(1e3 * (time.perf_counter() - began) / 4)
    return statistics.median(took[2:])


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", nargs="+", default=["0.8B", "9B"], choices=tuple(MODELS))
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 32, 64, 128, 256])
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 4096, 28672, 57344])
    parser.add_argument("--repeats", type=int, default=20)
    asked = parser.parse_args()
    torch.manual_seed(0)
    print("model  rows   depth  splits     whole     split    decode  apart")
    for model in asked.models:
        _, _, heads, kv_heads, _ = MODELS[model]
        for depth in asked.depths:
            for rows in asked.rows:
                given = operands(heads, kv_heads, rows, depth)
                made = {way: attend(way, given).float() for way in WAYS}
                apart = [float((made[way] - made["whole"]).abs().max()) for way in WAYS]
                took = [f"{milliseconds(way, given, asked.repeats):9.3f}" for way in WAYS]
                print(
                    f"{model:5} {rows:5} {depth:7} {splits(given):7} {' '.join(took)}  "
                    f"{apart[1]:.1e} {apart[2]:.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
