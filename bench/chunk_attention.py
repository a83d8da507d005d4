"""Attention of a short chunk deep in its context: by the prompt's kernel, or split like decode's.

Usage: python bench/chunk_attention.py [--models 0.8B 9B] [--rows 32 64 128 256]
       [--depths 0 4096 28672 57344] [--repeats 20]

The prompt's kernel has a program for each key/value head and tile of rows, which reads all tokens
before it: few rows leave most of the device idle. The kernels of the decode route split the tokens,
and read them once for every few rows. Milliseconds of one layer, bf16, and how far both results are
apart; ``attention_prefill.FEW_ROWS`` is where one ends and the other begins.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from _products import MODELS

from ninfer_core.ops.contracts.values import PAGE_TOKENS, KvCache, PagedRows
from ninfer_ops_triton import attention_prefill
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


def attend(few: int, given: tuple[torch.Tensor, KvCache, PagedRows]) -> torch.Tensor:
    attention_prefill.FEW_ROWS = few
    return attention_prefill.paged_prefill_attention(*given, SIZE**-0.5)


def milliseconds(few: int, given: tuple[torch.Tensor, KvCache, PagedRows], repeats: int) -> float:
    took = []
    for _ in range(repeats + 2):
        wait()
        began = time.perf_counter()
        for _ in range(4):
            attend(few, given)
        wait()
        took.append(1e3 * (time.perf_counter() - began) / 4)
    return statistics.median(took[2:])


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", nargs="+", default=["0.8B", "9B"], choices=tuple(MODELS))
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 4096, 28672, 57344])
    parser.add_argument("--repeats", type=int, default=20)
    asked = parser.parse_args()
    torch.manual_seed(0)
    print("model  rows   depth  prompt's     split  apart")
    for model in asked.models:
        _, _, heads, kv_heads, _ = MODELS[model]
        for depth in asked.depths:
            for rows in asked.rows:
                given = operands(heads, kv_heads, rows, depth)
                apart = (attend(0, given).float() - attend(rows, given).float()).abs().max()
                whole, split = (milliseconds(few, given, asked.repeats) for few in (0, rows))
                print(
                    f"{model:5} {rows:5} {depth:7} {whole:9.3f} {split:9.3f}  {apart:.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
