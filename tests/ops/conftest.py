"""Fixtures of the op tests: the reference table and random operands."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.ops.contracts.values import (
    GdnRecords,
    KvCache,
    PagedRows,
    SamplingRows,
    WeightMatrix,
)
from ninfer_core.ops.reference import OPS
from ninfer_core.ops.table import Ops

NEUTRAL = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "presence": 0.0,
    "frequency": 0.0, "repetition": 1.0, "seeds": 0, "bias_ids": (), "bias": (),
    "banned_ids": (), "banned_before": 0,
}  # fmt: skip


class Operands:
    """Random operands from one seeded generator."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(dtype)

    def permutation(self, count: int) -> torch.Tensor:
        return torch.randperm(count, generator=self.generator)

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=self.generator, dtype=torch.int32)

    def weight(self, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> WeightMatrix:
        plane = self.normal(rows, columns, dtype=dtype) * columns**-0.5
        names = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16"}
        return WeightMatrix(names[dtype], rows, columns, {"weight": plane})

    def cache(
        self, pages: int, heads: int, size: int, dtype: torch.dtype = torch.float32
    ) -> KvCache:
        keys, values = (self.normal(pages, 64, heads, size, dtype=dtype) for _ in range(2))
        return KvCache("fp32", keys, values)

    def gates(self, rows: int, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        decay = -torch.rand(rows, heads, generator=self.generator, dtype=torch.float64)
        beta = torch.rand(rows, heads, generator=self.generator, dtype=torch.float64)
        return decay, beta


@pytest.fixture
def ops() -> Ops:
    return OPS


@pytest.fixture
def operands() -> Operands:
    return Operands(20)


@pytest.fixture(params=[1, 2])
def threads(request):
    """One and two threads inside an op; restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def paged():
    """Build :class:`PagedRows` from page lists and starts."""

    def build(tables: list[list[int]], starts: list[int], live: list[int], width: int) -> PagedRows:
        longest = max(map(len, tables))
        padded = [pages + [-1] * (longest - len(pages)) for pages in tables]
        return PagedRows(
            torch.tensor(padded, dtype=torch.int32),
            torch.arange(len(tables), dtype=torch.int32),
            torch.tensor(starts, dtype=torch.int32),
            torch.tensor(live, dtype=torch.int32),
            width,
        )

    return build


@pytest.fixture
def records():
    """Poisoned verify records for ``slots`` state slots."""

    def build(
        slots: int,
        width: int,
        *,
        nk: int = 1,
        nv: int = 1,
        dk: int = 4,
        dv: int = 4,
        channels: int = 4,
    ) -> GdnRecords:
        shapes = [(channels,), (nk, dk), (nv, dv), (nv,)]
        return GdnRecords(*(torch.full((slots, width, *shape), float("nan")) for shape in shapes))

    return build


@pytest.fixture
def settings():
    """Build :class:`SamplingRows` from dictionaries of what is not neutral, one per sequence."""

    def build(*rows: dict) -> SamplingRows:
        full = [NEUTRAL | row for row in rows]
        kinds = {"top_k": torch.int32, "banned_before": torch.int32, "seeds": torch.int64}
        columns = {}
        for name in NEUTRAL:
            values = [row[name] for row in full]
            if isinstance(NEUTRAL[name], tuple):
                longest = max(map(len, values))
                unused = 0.0 if name == "bias" else -1
                values = [list(value) + [unused] * (longest - len(value)) for value in values]
                kind = torch.float32 if name == "bias" else torch.int32
                columns[name] = torch.tensor(values, dtype=kind).view(len(full), longest)
            else:
                columns[name] = torch.tensor(values, dtype=kinds.get(name, torch.float32))
        return SamplingRows(**columns)

    return build
