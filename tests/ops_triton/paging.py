"""Paged operands of the attention tests, and their float64 oracle.

Pools are NaN (or what stands for it) except at the tokens that sequences have cached, so whatever
reads beyond them shows. The oracle attends over what the kernel itself stored, decoded to float64;
that what it stored is right is checked apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from harness import Guarded, Operands
from torch import Tensor
from torch_attention import torch_attention

from ninfer_core.ops.contracts.values import AttentionMixer, KvCache, PagedRows
from ninfer_core.ops.reference import OPS as REFERENCE
from ninfer_core.ops.reference.kv_store import decode, encode

SIZE, ROTARY = 256, 64
ELEMENTS = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8, "fp8": torch.float8_e4m3fn,
}  # fmt: skip
GROUPS = {"int8": SIZE // 64, "fp8": 1}


@dataclass
class Pool:
    """A cache inside guard bytes."""

    cache: KvCache
    guards: list[Guarded]

    def check(self) -> None:
        for guard in self.guards:
            guard.check()

    def bytes(self) -> list[Tensor]:
        """Every pool and scale as bytes by token, [P * 64, .], on the CPU."""
        return [
            guard.tensor.view(torch.uint8).flatten(0, 1).flatten(1).cpu().clone()
            for guard in self.guards
        ]


def make_pool(kind: str, pages: int, heads: int, device: torch.device, size: int = SIZE) -> Pool:
    """A poisoned cache of ``pages`` pages."""
    shape = (pages, 64, heads)
    guards = [Guarded((*shape, size), ELEMENTS[kind], device) for _ in range(2)]
    if kind in GROUPS:
        groups = size // 64 if kind == "int8" else 1
        guards += [Guarded((*shape, groups), torch.float32, device) for _ in range(2)]
    return Pool(KvCache(kind, *(guard.tensor for guard in guards)), guards)


def fill(cache: KvCache, places: Tensor, operands: Operands) -> None:
    """Random keys and values at ``places`` i64[n], in the cache's format."""
    for pool, scales in ((cache.keys, cache.key_scales), (cache.values, cache.value_scales)):
        rows = operands.normal(len(places), *pool.shape[2:])
        if scales is None:
            pool.flatten(0, 1)[places] = rows.to(pool.dtype)
            continue
        codes, made = encode(cache.format, rows)
        pool.view(torch.uint8).flatten(0, 1)[places] = codes.view(torch.uint8)
        scales.flatten(0, 1)[places] = made


def wide(cache: KvCache) -> KvCache:
    """The cache decoded to float64, on the CPU."""
    pools = ((cache.keys, cache.key_scales), (cache.values, cache.value_scales))
    decoded = [
        decode(
            cache.format, pool.cpu(), None if scales is None else scales.cpu(), torch.float64
        ).double()
        for pool, scales in pools
    ]
    return KvCache("fp64", *decoded)


def make_rows(
    tables: list[list[int]],
    starts: list[int],
    live: list[int],
    width: int,
    device: torch.device,
    table_rows: list[int] | None = None,
) -> PagedRows:
    longest = max(map(len, tables))
    padded = [pages + [-1] * (longest - len(pages)) for pages in tables]
    lists = padded, table_rows or list(range(len(tables))), starts, live
    return PagedRows(
        *(torch.tensor(values, dtype=torch.int32, device=device) for values in lists), width
    )


def on_cpu(rows: PagedRows) -> PagedRows:
    tensors = rows.block_tables, rows.table_rows, rows.starts, rows.live
    return PagedRows(*(tensor.cpu() for tensor in tensors), rows.width, rows.first)


@dataclass
class Case:
    """Operands of one call over several sequences, each with shuffled pages of its own."""

    kind: str
    tables: list[list[int]]
    rows: PagedRows
    pool: Pool
    mixer: AttentionMixer
    stacked: Tensor
    cos: Tensor
    sin: Tensor

    @property
    def slots(self) -> Tensor:
        return REFERENCE.kv_slots(on_cpu(self.rows)).to(self.stacked.device)

    def fused(self) -> tuple:
        """Arguments of attention_mix_decode."""
        return (
            self.stacked, self.mixer, self.cos, self.sin, self.pool.cache, self.rows, self.slots
        )  # fmt: skip

    def split(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, gates, keys and values, views of ``stacked``."""
        heads, kv, count = self.mixer.heads, self.mixer.kv_heads, self.stacked.shape[0]
        q_gate, k, v = self.stacked.split([heads * 2 * SIZE, kv * SIZE, kv * SIZE], dim=1)
        q, gate = q_gate.view(count, heads, 2 * SIZE).split(SIZE, dim=2)
        return q, gate, k.view(count, kv, SIZE), v.view(count, kv, SIZE)

    def one(self, sequence: int, row: int, start: int | None = None) -> Case:
        """The one-row call of a row of this call, on the same pool."""
        place = sequence * self.rows.width + row
        begin = int(self.rows.starts[sequence]) + row if start is None else start
        return replace(
            self,
            tables=[self.tables[sequence]],
            rows=make_rows([self.tables[sequence]], [begin], [1], 1, self.stacked.device),
            stacked=self.stacked[place : place + 1],
            cos=self.cos[place : place + 1],
            sin=self.sin[place : place + 1],
        )

    def expected_store(self) -> tuple[Tensor, KvCache]:
        """Queries and, at the slots, keys and values in float64 before any encoding."""
        q, _, k, v = (part.cpu().double() for part in self.split())
        shape = self.pool.cache.keys.shape
        store = KvCache("fp64", *(torch.zeros(shape, dtype=torch.float64) for _ in range(2)))
        scales = (self.mixer.q_scale.cpu().double(), self.mixer.k_scale.cpu().double())
        angles = (self.cos.cpu().double(), self.sin.cpu().double())
        queries = REFERENCE.qk_norm_rope_store(
            q, k, v, *scales, self.mixer.eps, *angles, store, self.slots.cpu()
        )
        return queries, store

    def oracle(self) -> Tensor:
        """The fused op in float64 over what the pool holds now."""
        queries, _ = self.expected_store()
        _, gate, _, _ = self.split()
        attended = REFERENCE.paged_decode_attention(
            queries, wide(self.pool.cache), on_cpu(self.rows), SIZE**-0.5
        )
        gated = torch.sigmoid(gate.cpu().double()) * attended
        return gated.reshape(len(gated), -1)

    def baseline(self) -> Tensor:
        """What torch's own ops give in the dtype of ``stacked``."""
        queries, _ = self.expected_store()
        _, gate, _, _ = self.split()
        attended = torch_attention(
            queries.to(gate), wide(self.pool.cache), on_cpu(self.rows), SIZE**-0.5
        )
        return (torch.sigmoid(gate) * attended).flatten(1)


def make_case(
    operands: Operands,
    kind: str,
    starts: list[int],
    live: list[int],
    width: int,
    *,
    heads: int = 4,
    kv: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    spare: int = 2,
) -> Case:
    """Sequences with ``starts`` cached tokens; ``spare`` pages belong to nobody."""
    device, count = operands.device, len(starts) * width
    needed = [-(-(start + width) // 64) for start in starts]
    order = torch.randperm(sum(needed) + spare, generator=operands.generator).tolist()
    tables = [[order.pop() for _ in range(pages)] for pages in needed]
    pool = make_pool(kind, sum(needed) + spare, kv, device)
    for pages, start in zip(tables, starts, strict=True):
        tokens = torch.arange(start)
        places = torch.tensor(pages)[tokens // 64] * 64 + tokens % 64
        fill(pool.cache, places.to(device), operands)
    angles = operands.uniform(count, ROTARY // 2) * 7
    return Case(
        kind, tables, make_rows(tables, starts, live, width, device), pool,
        AttentionMixer(
            q_scale=operands.normal(SIZE) * 0.5 + 1, k_scale=operands.normal(SIZE) * 0.5 + 1,
            eps=1e-6, heads=heads, kv_heads=kv, head_size=SIZE,
        ),
        operands.normal(count, 2 * SIZE * (heads + kv), dtype=dtype, scale=1.7),
        angles.cos(), angles.sin(),
    )  # fmt: skip


def assert_stored(case: Case, before: list[Tensor]) -> None:
    """Keys and values stand at the case's slots, encoded, and no other byte changed."""
    _, expected = case.expected_store()
    slots = case.slots.cpu()
    slots = slots[slots >= 0]
    for old, new in zip(before, case.pool.bytes(), strict=True):
        kept = torch.ones(len(old), dtype=torch.bool)
        kept[slots] = False
        assert torch.equal(old[kept], new[kept]), "a byte beside the slots changed"
    if not len(slots):
        return
    found = wide(case.pool.cache)
    tolerance = {"fp32": 2**-21, "bf16": 2**-8, "int8": 1 / 253, "fp8": 1 / 27.9}[case.kind]
    for result, exact in ((found.keys, expected.keys), (found.values, expected.values)):
        rows, oracle = result.flatten(0, 1)[slots], exact.flatten(0, 1)[slots]
        top = oracle.abs().unflatten(-1, (GROUPS.get(case.kind, 1), -1)).amax(-1, keepdim=True)
        off = (rows - oracle).abs().unflatten(-1, (GROUPS.get(case.kind, 1), -1))
        assert bool((off <= top * tolerance).all()), f"off by {float((off / top).max())} of a group"
