"""Norms and gates of the prefill route, and of decode rounds where nothing is fused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.kernels.norm import (
    gated_rms_norm_kernel,
    rms_norm_kernel,
    sigmoid_gate_kernel,
    swiglu_kernel,
)
from ninfer_ops_triton.launch import cdiv, launch

WIDEST = 32_768
"""Elements of a row that one program holds at once."""

_ELEMENTS = 1024


def rms_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    _launch_norm(x, None, scale, eps, out, None)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    _check_same(x, residual, "residual")
    x, residual = x.contiguous(), residual.contiguous()
    out, total = torch.empty_like(x), torch.empty_like(x)
    _launch_norm(x, residual, scale, eps, out, total)
    return out, total


def gated_rms_norm(x: Tensor, gate: Tensor, scale: Tensor, eps: float) -> Tensor:
    if x.ndim != 3 or x.shape != gate.shape:
        raise OpError(
            f"x {list(x.shape)} and gate {list(gate.shape)} must have one shape [T, heads, width]"
        )
    count, heads, width = x.shape
    x, gate = x.contiguous(), _dense_last(gate)
    block, _ = row_block(width, scale)
    together = max(1, min(16, _ELEMENTS // block))
    out = gate.new_empty(count, heads, width)
    if count:
        launch(
            gated_rms_norm_kernel, (count, cdiv(heads, together)),
            x, gate, scale, out, heads, width, gate.stride(0), gate.stride(1), eps,
            dependent=True, HEADS=together, BLOCK=block,
        )  # fmt: skip
    return out


def swiglu(gate_up: Tensor) -> Tensor:
    if gate_up.ndim != 2 or gate_up.shape[1] % 2:
        raise OpError(f"gate_up is {list(gate_up.shape)}; it must be [T, 2 I]")
    count, width = gate_up.shape[0], gate_up.shape[1] // 2
    gate_up = _dense_last(gate_up)
    out = gate_up.new_empty(count, width)
    if count:
        launch(
            swiglu_kernel, (count, cdiv(width, _ELEMENTS)),
            gate_up, out, width, gate_up.stride(0), dependent=True, BLOCK=_ELEMENTS,
        )  # fmt: skip
    return out


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    _check_same(x, gate, "gate")
    out = x.new_empty(*x.shape)
    if x.numel():
        rows, gates = _heads(x), _heads(gate)
        count, heads, width = rows.shape
        launch(
            sigmoid_gate_kernel, (count, cdiv(heads * width, _ELEMENTS)),
            rows, gates, out, heads, width,
            rows.stride(0), rows.stride(1), gates.stride(0), gates.stride(1),
            dependent=True, BLOCK=_ELEMENTS,
        )  # fmt: skip
    return out


def _launch_norm(
    x: Tensor,
    residual: Tensor | None,
    scale: Tensor,
    eps: float,
    out: Tensor,
    total: Tensor | None,
) -> None:
    width = x.shape[-1]
    block, warps = row_block(width, scale)
    if x.numel():
        launch(
            rms_norm_kernel, (x.numel() // width,),
            x, x if residual is None else residual, scale, out, out if total is None else total,
            width, eps, warps=warps, dependent=True, ADD=residual is not None, BLOCK=block,
        )  # fmt: skip


def row_block(width: int, scale: Tensor) -> tuple[int, int]:
    """Elements that hold a row, a power of two, and warps."""
    if not 1 <= width <= WIDEST:
        raise OpError(f"rows of {width} elements are not normalised; from 1 to {WIDEST} are")
    if scale.shape != (width,) or scale.dtype != torch.float32 or not scale.is_contiguous():
        raise OpError(
            f"scale is {scale.dtype}{list(scale.shape)}; "
            f"it must be torch.float32[{width}] and contiguous"
        )
    return _blocks(width)


@lru_cache
def _blocks(width: int) -> tuple[int, int]:
    block = max(16, 1 << (width - 1).bit_length())
    return block, min(16, max(1, block // 512))


def _check_same(x: Tensor, other: Tensor, name: str) -> None:
    if x.shape != other.shape or x.dtype != other.dtype or x.ndim < 2:
        raise OpError(
            f"{name} is {other.dtype}{list(other.shape)}; it must be like x, "
            f"{x.dtype}{list(x.shape)}, of two dimensions or more"
        )


def _heads(x: Tensor) -> Tensor:
    """A view [T, heads, width] with a dense last dimension; a copy where there is none."""
    if x.ndim == 2:
        x = x.unsqueeze(1)
    return _dense_last(x if x.ndim == 3 else x.flatten(1, -2))


def _dense_last(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


OPS: Mapping[str, Callable[..., Any]] = {
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "gated_rms_norm": gated_rms_norm,
    "swiglu": swiglu,
    "sigmoid_gate": sigmoid_gate,
}
"""Op name to function."""
