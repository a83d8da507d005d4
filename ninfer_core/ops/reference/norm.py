"""Normalisation and gating."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from ninfer_core.ops.reference.lanes import compute_dtype, whole_lanes


def rms_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    wide = x.to(compute_dtype(x))
    return torch.rms_norm(wide, (x.shape[-1],), scale.to(wide.dtype), eps).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = residual + x
    return rms_norm(total, scale, eps), total


def gated_rms_norm(x: Tensor, gate: Tensor, scale: Tensor, eps: float) -> Tensor:
    wide = x.to(compute_dtype(x))
    normed = torch.rms_norm(wide, (x.shape[-1],), scale.to(wide.dtype), eps)
    return normed.mul_(whole_lanes(silu, gate.to(wide.dtype))).to(gate.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    wide = whole_lanes(silu, gate.to(compute_dtype(gate)))
    return wide.mul_(up).to(gate_up.dtype)


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    opening = whole_lanes(torch.sigmoid, gate.to(compute_dtype(gate)))
    return opening.mul_(x).to(x.dtype)
