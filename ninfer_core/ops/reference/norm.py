"""Normalisation and gating."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import silu

from ninfer_core.ops.reference.lanes import whole_lanes, widen


def rms_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    return _normed(widen(x), scale, eps).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = residual + x
    return rms_norm(total, scale, eps), total


def gated_rms_norm(x: Tensor, gate: Tensor, scale: Tensor, eps: float) -> Tensor:
    normed = _normed(widen(x), scale, eps)
    return normed.mul_(whole_lanes(silu, widen(gate))).to(gate.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return whole_lanes(silu, widen(gate)).mul_(up).to(gate_up.dtype)


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    return whole_lanes(torch.sigmoid, widen(gate)).mul_(x).to(x.dtype)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """``rsqrt(mean x^2 + eps)`` over the last dimension of wide x, kept as size 1.

    Products and sums are separate: a fused multiply-add exists only on ATen's vector path.
    """
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    share = constant(1 / x.shape[-1], x.dtype)
    return length.square_().mul_(share).add_(constant(eps, x.dtype)).rsqrt_()


@lru_cache
def constant(value: float, dtype: torch.dtype) -> Tensor:
    """A number as a tensor: ATen takes one faster than a Python number."""
    return torch.tensor(value, dtype=dtype)


def _normed(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    return torch.mul(x, inverse_rms(x, eps)).mul_(scale)
