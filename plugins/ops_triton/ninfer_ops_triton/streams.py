"""Products over the residual stream (``values.Stream``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ninfer_core.ops.contracts.values import Stream, WeightMatrix
from ninfer_ops_triton import heads, linear


def open_stream(residual: Tensor, scale: Tensor) -> Stream:
    return Stream(residual, scale)


def norm_linear(stream: Stream, eps: float, weight: WeightMatrix) -> Tensor:
    return linear.norm_linear(stream.residual, stream.scale, eps, weight)


def linear_add(x: Tensor, weight: WeightMatrix, stream: Stream, scale: Tensor) -> Stream:
    return Stream(linear.linear_add(x, weight, stream.residual), scale)


def norm_swiglu(stream: Stream, eps: float, weight: WeightMatrix) -> Tensor:
    return linear.norm_swiglu(stream.residual, stream.scale, eps, weight)


def norm_head(stream: Stream, eps: float, weight: WeightMatrix, addressable: int) -> Tensor:
    return heads.norm_head(stream.residual, stream.scale, eps, weight, addressable)


OPS: Mapping[str, Callable[..., Any]] = {
    "open_stream": open_stream,
    "norm_linear": norm_linear,
    "linear_add": linear_add,
    "norm_swiglu": norm_swiglu,
    "norm_head": norm_head,
}
"""Op name to function."""
