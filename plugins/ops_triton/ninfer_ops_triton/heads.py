"""Logits, and log-probabilities of prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ninfer_core.ops.contracts.values import WeightMatrix
from ninfer_ops_triton.linear import product


def lm_head(hidden: Tensor, weight: WeightMatrix, addressable: int) -> Tensor:
    return product(hidden, weight, "head", live_rows=addressable)


def norm_head(
    residual: Tensor, scale: Tensor, eps: float, weight: WeightMatrix, addressable: int
) -> Tensor:
    return product(residual, weight, "head", norm=scale, eps=eps, live_rows=addressable)


OPS: Mapping[str, Callable[..., Any]] = {"lm_head": lm_head, "norm_head": norm_head}
"""Op name to function."""
