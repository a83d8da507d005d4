"""Launches of attention and the key/value store at real geometry."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from harness import Operands

from ninfer_core.ops.contracts.values import AttentionMixer, KvCache, PagedRows
from ninfer_ops_triton import attention, attention_prefill, kv

META = Operands(device="meta")
SIZE, ROTARY, PAGES = 256, 64, 4096
BF16, I32, I64 = torch.bfloat16, torch.int32, torch.int64
ELEMENTS = {"bf16": BF16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
GROUPS = {"int8": SIZE // 64, "fp8": 1}
GEOMETRIES = {"0.8b": (8, 2), "27b": (24, 4), "122b": (32, 2)}


def cache(kind: str, heads: int) -> KvCache:
    pools = [META.empty(PAGES, 64, heads, SIZE, dtype=ELEMENTS[kind]) for _ in range(2)]
    groups = GROUPS.get(kind, 0)
    scales = [META.empty(PAGES, 64, heads, groups) for _ in range(2 if groups else 0)]
    return KvCache(kind, *pools, *scales)


def paged(sequences: int, width: int) -> PagedRows:
    small = [META.empty(sequences, dtype=I32) for _ in range(3)]
    return PagedRows(META.empty(8, PAGES, dtype=I32), *small, width)


def angles(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return META.empty(count, ROTARY // 2), META.empty(count, ROTARY // 2)


def mixed(kind: str, heads: int, kv_heads: int, sequences: int = 8, width: int = 4) -> None:
    count = sequences * width
    mixer = AttentionMixer(
        q_scale=META.empty(SIZE), k_scale=META.empty(SIZE), eps=1e-6,
        heads=heads, kv_heads=kv_heads, head_size=SIZE,
    )  # fmt: skip
    stacked = META.empty(count, 2 * SIZE * (heads + kv_heads), dtype=BF16)
    attention.attention_mix_decode(
        stacked, mixer, *angles(count), cache(kind, kv_heads), paged(sequences, width),
        META.empty(count, dtype=I64),
    )  # fmt: skip


def unfused(kind: str, heads: int, kv_heads: int) -> None:
    q = META.empty(8, heads, SIZE, dtype=BF16)
    attention.paged_decode_attention(q, cache(kind, kv_heads), paged(8, 1), SIZE**-0.5)


def chunk(kind: str, heads: int, kv_heads: int, count: int) -> None:
    q = META.empty(count, heads, SIZE, dtype=BF16)
    rows = paged(1, count)
    attention_prefill.paged_prefill_attention(q, cache(kind, kv_heads), rows, SIZE**-0.5)


def stored(kind: str, heads: int, kv_heads: int, count: int) -> None:
    stacked = META.empty(count, 2 * SIZE * (heads + kv_heads), dtype=BF16)
    q_gate, k, v = stacked.split([2 * SIZE * heads, SIZE * kv_heads, SIZE * kv_heads], dim=1)
    q = q_gate.view(count, heads, 2 * SIZE)[..., :SIZE]
    k, v = k.view(count, kv_heads, SIZE), v.view(count, kv_heads, SIZE)
    scales = META.empty(SIZE), META.empty(SIZE)
    slots = META.empty(count, dtype=I64)
    kv.qk_norm_rope_store(q, k, v, *scales, 1e-6, *angles(count), cache(kind, kv_heads), slots)


def addresses() -> None:
    kv.rope_angles(META.empty(3, 8, dtype=I32), META.empty(32), META.empty(32, dtype=I64))
    kv.kv_slots(paged(8, 4))
    for rows, width in ((1, 1), (8, 4)):
        positions = META.empty(3, rows * width, dtype=I32)
        kv.place_rows(paged(rows, width), positions, META.empty(32), META.empty(32, dtype=I64))


LAUNCHES: dict[str, Callable[[], None]] = {"addresses": addresses}
for size, heads in GEOMETRIES.items():
    LAUNCHES[f"mixed.{size}"] = partial(mixed, "bf16", *heads)
for form in ELEMENTS:
    LAUNCHES[f"mixed.one.{form}"] = partial(mixed, form, 16, 4, 1, 1)
    LAUNCHES[f"stored.{form}"] = partial(stored, form, 24, 4, 2048)
    LAUNCHES[f"chunk.{form}"] = partial(chunk, form, 16, 4, 8192)
LAUNCHES["unfused"] = partial(unfused, "bf16", 16, 4)
LAUNCHES["chunk.512"] = partial(chunk, "bf16", 16, 4, 512)
for form in ELEMENTS:
    LAUNCHES[f"chunk.short.{form}"] = partial(chunk, form, 16, 4, 64)
LAUNCHES["chunk.short.27b"] = partial(chunk, "bf16", 24, 4, 100)
LAUNCHES["chunk.27b"] = partial(chunk, "bf16", 24, 4, 2048)
