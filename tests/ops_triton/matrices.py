"""Weights in each format, with the numbers that they stand for."""

from __future__ import annotations

import torch
from harness import Operands
from torch import Tensor

from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_ops_triton.tiles import Tile
from ninfer_ops_triton.weights import prepare_linear

FORMATS = {"bf16": "bf16", "fp8": "fp8_e4m3fn_row_bf16", "q4": "q4_g64_fp16"}
EPS = 1e-6
TILES = {
    "one": Tile(32, 128, 1, 1, 2, 3),
    "groups": Tile(16, 256, 4, 1, 4, 3, early=0),
    "parts": Tile(16, 128, 2, 4, 4, 3),
    "broad": Tile(16, 64, 2, 1, 2, 3, early=4),
}
_PACKED = TILES | {"one": Tile(32, 64, 1, 1, 2, 3, early=0)}


def cuts(kind: str) -> dict[str, Tile]:
    """Tiles of small products of a format, by what is special about them."""
    return _PACKED if kind == "q4" else TILES


def matrix(operands: Operands, kind: str, rows: int, columns: int) -> tuple[WeightMatrix, Tensor]:
    """A prepared weight and its float64 values [rows, columns] on the CPU, about columns^-1/2 in
    size."""
    weight, values = stored_matrix(operands, kind, rows, columns)
    return prepare_linear(weight), values


def stored_matrix(
    operands: Operands, kind: str, rows: int, columns: int
) -> tuple[WeightMatrix, Tensor]:
    """As :func:`matrix`, with the planes of an artifact."""
    size = columns**-0.5
    if kind == "bf16":
        plane = operands.normal(rows, columns, dtype=torch.bfloat16, scale=size)
        return WeightMatrix("bf16", rows, columns, {"weight": plane}), plane.cpu().double()
    if kind == "fp8":
        codes = operands.normal(rows, columns, scale=50.0).clamp(-448, 448)
        codes = codes.to(torch.float8_e4m3fn)
        scales = (operands.uniform(rows) * size / 50 + size / 50).bfloat16()
        planes = {"codes": codes, "scales": scales}
        values = codes.cpu().double() * scales.cpu().double()[:, None]
        return WeightMatrix(FORMATS[kind], rows, columns, planes), values
    padded = -(-columns // 128) * 128
    numbers = operands.integers(16, rows, padded).cpu() - 8
    steps = (operands.uniform(rows, padded // 64) * size / 4 + size / 8).half().cpu()
    numbers[:, columns:] = 0
    steps[:, -(-columns // 64) :] = 0
    nibbles = (numbers & 15).to(torch.uint8)
    planes = {
        "codes": (nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)).to(operands.device),
        "scales": steps.to(operands.device),
    }
    values = numbers.double() * steps.double().repeat_interleave(64, dim=1)
    return WeightMatrix(FORMATS[kind], rows, columns, planes), values[:, :columns].contiguous()


def rms_normed(x: Tensor, scale: Tensor) -> Tensor:
    """float64, on the CPU."""
    wide = x.cpu().double()
    inverse = (wide.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return wide * inverse * scale.cpu().double()


def silu(x: Tensor) -> Tensor:
    """float64."""
    return x / (1 + (-x).exp())
