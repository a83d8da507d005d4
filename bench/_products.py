"""The decode products of the published models: shapes, candidates, operands, and what is right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ninfer_core.artifact.formats.row_groups import decode_grouped
from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_ops_triton import heads, linear, tiles, weights
from ninfer_ops_triton.streams import open_stream
from ninfer_ops_triton.tiles import Tile

DEVICE = "cuda"
Operands = tuple[Tensor, Tensor, WeightMatrix, Tensor]
"""x, scale of the norm, weight, residual."""

MODELS = {
    "0.8B": (1024, 16, 8, 2, 3584),
    "4B": (2560, 32, 16, 4, 9216),
    "9B": (4096, 32, 16, 4, 12288),
    "27B": (5120, 48, 24, 4, 17408),
}
"""Hidden size, value heads, heads, KV heads, intermediate size; 16 key heads, sizes 128 and 256."""

FORMATS = {kind: name for name, kind in weights.KINDS.items()}
VOCABULARY = 248_320
EPS = 1e-6
COLD_BYTES = 160 << 20
"""Bytes of all copies of a weight together: several times the L2 cache."""

COUNTS = (1, 5, 8, 9, 16, 17, 32, 33)
SAMPLED = 2048
"""Rows at each end of a weight whose products are compared with float64."""

PLAIN = {
    "bf16": [
        (16, 256, 4, 4, 3), (32, 256, 4, 4, 3), (16, 512, 4, 4, 3), (16, 512, 8, 8, 3),
        (32, 128, 1, 2, 5), (64, 128, 1, 2, 4),
    ],
    "fp8": [
        (16, 512, 4, 4, 3), (16, 256, 4, 4, 5), (32, 512, 4, 4, 3), (64, 128, 1, 2, 5),
    ],
    "q4": [
        (64, 256, 4, 4, 4), (32, 256, 4, 4, 4), (64, 512, 8, 8, 3), (32, 512, 8, 8, 3),
        (32, 512, 8, 4, 3), (128, 256, 4, 4, 3), (64, 256, 4, 4, 7), (32, 256, 4, 4, 7),
    ],
}  # fmt: skip
"""Rows, columns, groups, warps and stages to try for every weight."""

SHORT_ROWS = 2560
"""Columns of rows that few steps take."""

FEW_ROWS, SOME_ROWS = 6000, 20_000
"""Up to so many rows, parts of the columns are tried too."""

PARTS: dict[str, list[tuple[int, int]]] = {
    "bf16": [(0, 2), (0, 4), (1, 2), (1, 4)],
    "fp8": [(0, 2), (2, 2), (2, 4)],
    "q4": [(0, 4), (0, 6), (0, 8), (1, 2), (1, 3), (1, 4), (3, 2), (3, 3)],
}
"""Places in PLAIN, and parts, for few rows; shapes that a product does not take are left out."""

SOME_PARTS: dict[str, list[tuple[int, int]]] = {
    "bf16": [],
    "fp8": [],
    "q4": [(0, 2), (0, 3), (1, 2)],
}
"""As PARTS, for some rows more."""


@dataclass(frozen=True)
class Case:
    """A weight of ``rows`` outputs (half of what is stored for ``swiglu``), as it is used."""

    fusion: str
    kind: str
    rows: int
    columns: int

    @property
    def stored(self) -> int:
        return self.rows * (2 if self.fusion == "swiglu" else 1)

    def candidates(self) -> list[Tile]:
        shapes = PLAIN[self.kind]
        if self.fusion == "swiglu" and self.kind == "bf16":
            shapes = [shape for shape in shapes if shape[0] <= 32]
        if self.fusion == "swiglu" and self.kind == "q4":
            # Rows of both halves are one tile.
            shapes = [(shape[0] // 2, *shape[1:]) for shape in shapes]
        # Quantised weights are decoded in registers, which their first step would take.
        begin = (2, self.kind == "bf16")
        found = [Tile(r, k, g, 1, warps, stages, *begin) for r, k, g, warps, stages in shapes]
        if self.kind == "bf16" and self.columns <= SHORT_ROWS:
            # All or much of a short row comes before the wait.
            found.append(Tile(16, 1024, 8, 1, 8, 2, 2, True, registers=112))
        parts = []
        if self.rows <= FEW_ROWS:
            # The largest tiles leave most of the machine idle there.
            found = [tile for tile in found if tile.block_r <= 32]
            parts = PARTS[self.kind]
        elif self.rows <= SOME_ROWS and self.fusion != "swiglu":
            parts = SOME_PARTS[self.kind]
        for place, split in parts:
            shape = PLAIN[self.kind][place]
            if shape in shapes:
                r, k, g, warps, stages = shape
                found.append(Tile(r, k, g, split, warps, stages, *begin))
        return found

    def call(self, x: Tensor, scale: Tensor, weight: WeightMatrix, residual: Tensor) -> Tensor:
        return self.ready(x, scale, residual)(weight)

    def ready(self, x: Tensor, scale: Tensor, residual: Tensor) -> Callable[[WeightMatrix], Tensor]:
        """The product over rows that are prepared once, as a product before would leave them."""
        if self.fusion == "linear":
            ones = torch.ones(self.rows, device=x.device)
            into = open_stream(residual, ones)
            return lambda weight: linear.linear_add(x, weight, into, ones).residual
        opened = open_stream(x, scale)
        parts = max(1, self.columns // ROWS_A_PART)
        assert opened.squares is not None
        stream = replace(opened, squares=(opened.squares / parts).repeat(1, parts))
        if self.fusion == "norm":
            return lambda weight: linear.norm_linear(stream, EPS, weight)
        if self.fusion == "swiglu":
            return lambda weight: linear.norm_swiglu(stream, EPS, weight)
        return lambda weight: heads.norm_head(stream, EPS, weight, self.rows)


ROWS_A_PART = 16
"""Of a product that adds: so many of its sums share one sum of squares."""


def cases(models: list[str], kinds: list[str]) -> list[Case]:
    """Every weight of the models once, in every format."""
    found: dict[Case, None] = {}
    for kind, model in itertools.product(kinds, models):
        hidden, nv, nh, kv, inner = MODELS[model]
        mixer = 2 * 16 * 128 + 2 * nv * 128 + 2 * nv
        shapes = [
            ("norm", mixer, hidden), ("norm", nh * 512 + 2 * kv * 256, hidden),
            ("linear", hidden, nv * 128), ("linear", hidden, nh * 256),
            ("swiglu", inner, hidden), ("linear", hidden, inner), ("head", VOCABULARY, hidden),
        ]  # fmt: skip
        found.update({Case(fusion, kind, rows, columns): None for fusion, rows, columns in shapes})
    return list(found)


def planes(kind: str, rows: int, columns: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    padded, whole = -(-columns // 128) * 128, -(-rows // 16) * 16
    return {
        "bf16": {"weight": ((rows, columns), torch.bfloat16)},
        "fp8": {
            "codes": ((rows, columns), torch.float8_e4m3fn), "scales": ((rows,), torch.bfloat16),
        },
        "q4": {
            "codes": ((whole, padded // 2), torch.uint8),
            "scales": ((padded // 64, whole), torch.float16),
        },
    }[kind]  # fmt: skip


def blank(case: Case, count: int) -> Operands:
    """Operands without storage, to compile for."""
    empty = partial(torch.empty, device="meta")
    held = {n: empty(s, dtype=d) for n, (s, d) in planes(case.kind, case.stored, case.columns)
            .items()}  # fmt: skip
    weight = WeightMatrix(FORMATS[case.kind], case.stored, case.columns, held)
    x = empty((count, case.columns), dtype=torch.bfloat16)
    return x, empty(case.columns), weight, empty((count, case.rows), dtype=torch.bfloat16)


def use(tile: Tile) -> None:
    tiles.choose = lambda *shape: tiles.paced(tile, *shape)


def operands_of(case: Case, weight: WeightMatrix) -> Operands:
    count = max(COUNTS)
    generator = torch.Generator(device=DEVICE).manual_seed(1)
    x = torch.randn(count, case.columns, device=DEVICE, generator=generator).bfloat16()
    scale = torch.rand(case.columns, device=DEVICE, generator=generator) + 0.5
    residual = torch.randn(count, case.rows, device=DEVICE, generator=generator).bfloat16()
    return x, scale, weight, residual


def dense(weight: WeightMatrix, rows: slice) -> Tensor:
    """float64 of some rows."""
    if weight.format == "bf16":
        return weight.planes["weight"][rows].double()
    codes, scales = weight.planes["codes"][rows], weight.planes["scales"]
    if "fp8" in weight.format:
        return codes.float().double() * scales[rows].double()[:, None]
    return decode_grouped(by_row(codes), scales[:, rows].t().contiguous(), weight.columns).double()


def by_row(codes: Tensor) -> Tensor:
    """Whole blocks of resident four-bit codes (``weights.Q4_TILED``) as they are stored."""
    rows, row_bytes = codes.shape
    words = codes.view(torch.int32).view(rows // 16, row_bytes // 32, 8, 4, 2, 2)
    return words.permute(0, 2, 5, 1, 4, 3).contiguous().view(torch.uint8).view(rows, row_bytes)


def oracle(case: Case, operands: Operands) -> Tensor:
    """float64 products of the first and the last rows."""
    x, scale, weight, residual = operands
    wide = x.double()
    if case.fusion != "linear":
        wide = wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt() * scale.double()
    parts = []
    for rows in ends(case.rows):
        product = wide @ dense(weight, rows).T
        if case.fusion == "linear":
            product = product + residual[:, rows].double()
        if case.fusion == "swiglu":
            upper = slice(rows.start + case.rows, rows.stop + case.rows)
            product = product * product.sigmoid() * (wide @ dense(weight, upper).T)
        parts.append(product)
    return torch.cat(parts, dim=1)


def ends(rows: int) -> list[slice]:
    count = min(rows // 2, SAMPLED)
    return [slice(0, count), slice(rows - count, rows)]


def fault(case: Case, operands: Operands) -> str | None:
    """Why the present tile may not be used: wrong results, or bits that depend on company."""
    x, scale, weight, residual = operands
    whole = case.call(x, scale, weight, residual)
    exact = oracle(case, operands)
    sampled = torch.cat([whole[:, rows] for rows in ends(case.rows)], dim=1).double()
    error = float((sampled - exact).norm() / exact.norm())
    # bf16 rounds by at most 2^-9, here the operand of the product, what is gated and the result.
    if not error < 2**-7:
        return f"relative error {error:.2e}"
    for count in COUNTS:
        last = case.call(x[-count:], scale, weight, residual[-count:])
        if not torch.equal(last, whole[-count:]):
            return f"bits of {count} rows differ"
    return None


class Pools:
    """Random planes as views of buffers that are filled once."""

    def __init__(self) -> None:
        size = 3 << 30
        generator = torch.Generator(device=DEVICE).manual_seed(0)
        options: dict[str, Any] = {"device": DEVICE, "generator": generator}
        normal = torch.randn(1 << 26, **options)
        nibbles = torch.randint(0, 256, (1 << 26,), dtype=torch.uint8, **options)
        steps = torch.rand(1 << 24, **options) * 0.01 + 0.005
        self.buffers = {
            torch.bfloat16: self._filled((normal * 0.02).bfloat16(), size),
            torch.float8_e4m3fn: self._filled((normal * 40).to(torch.float8_e4m3fn), size // 2),
            torch.uint8: self._filled(nibbles, size // 4),
            torch.float16: self._filled(steps.half(), size // 16),
        }

    def _filled(self, source: Tensor, size: int) -> Tensor:
        raw = source.view(torch.uint8)
        return raw.repeat(math.ceil(size / raw.numel()))[:size]

    def copies(self, case: Case) -> list[WeightMatrix]:
        """As many as do not fit the cache, at different places."""
        return list(itertools.islice(self._weights(case), 200))

    def _weights(self, case: Case) -> Iterator[WeightMatrix]:
        shapes = planes(case.kind, case.stored, case.columns)
        total = sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values())
        used = dict.fromkeys(self.buffers, 0)
        for _ in range(max(1, -(-COLD_BYTES // total))):
            held = {}
            for name, (shape, dtype) in shapes.items():
                size = math.prod(shape) * dtype.itemsize
                raw = self.buffers[dtype][used[dtype] : used[dtype] + size]
                if raw.numel() < size:
                    return
                used[dtype] += -(-size // 256) * 256
                held[name] = raw.view(dtype).view(shape)
            yield WeightMatrix(FORMATS[case.kind], case.stored, case.columns, held)
