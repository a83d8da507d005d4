"""Opening a residual stream (``values.Stream``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import Stream
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.kernels.norm import open_stream_kernel
from ninfer_ops_triton.launch import launch, next_power_of_2


def open_stream(residual: Tensor, scale: Tensor) -> Stream:
    """Raises OpError unless residual is bf16[T, H] and scale f32[H]."""
    if residual.ndim != 2 or residual.dtype != torch.bfloat16:
        raise OpError(f"residual is {residual.dtype}{list(residual.shape)}; it must be bf16[T, H]")
    count, width = residual.shape
    block, warps = stream_block(width, scale)
    residual = residual.contiguous()
    scaled = torch.empty_like(residual)
    squares = torch.empty((count, 1), dtype=torch.float32, device=residual.device)
    launch(
        open_stream_kernel, (count,), residual, scale.contiguous(), scaled, squares, width,
        warps=warps, dependent=scale.is_contiguous(), BLOCK=block,
    )  # fmt: skip
    return Stream(residual, scale, scaled, squares)


def stream_block(width: int, scale: Tensor) -> tuple[int, int]:
    """Elements that hold a row, a power of two, and warps: whoever opens a stream adds up squares
    alike. Raises OpError unless scale is f32[``width``]."""
    if tuple(scale.shape) != (width,) or scale.dtype != torch.float32:
        raise OpError(f"scale is {scale.dtype}{list(scale.shape)}; it must be f32[{width}]")
    return next_power_of_2(width), 8


OPS: Mapping[str, Callable[..., Any]] = {"open_stream": open_stream}
"""Op name to function."""
