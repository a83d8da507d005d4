"""Rows at the ends of a forward pass: tokens into a stream, hidden rows to a drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ninfer_core.artifact.formats import Q4_GROUPS
from ninfer_core.ops.contracts.values import Stream, WeightMatrix
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.kernels import hidden as kernels
from ninfer_ops_triton.launch import launch
from ninfer_ops_triton.norm import row_block
from ninfer_ops_triton.streams import stream_block
from ninfer_ops_triton.weights import Q4_TILED, codes_and_scales, kind_of, scale_steps


def embed_stream(ids: Tensor, table: WeightMatrix, scale: Tensor) -> Stream:
    """Not a dependent launch: it starts once all earlier kernels are done, and with it a forward
    pass begins, so that what was settled before may be read by any later kernel at any time."""
    _check_ids(ids)
    count, width = ids.shape[0], table.columns
    block, warps = stream_block(width, scale)
    codes, scales = codes_and_scales(table)
    made = torch.empty((count, width), dtype=torch.bfloat16, device=codes.device)
    scaled = torch.empty_like(made)
    squares = torch.empty((count, 1), dtype=torch.float32, device=codes.device)
    launch(
        kernels.embed_stream_kernel, (count,), ids.contiguous(), codes, scales, scale.contiguous(),
        made, scaled, squares, width, codes.shape[1], *scale_steps(table),
        warps=warps, dependent=False, BLOCK=block, **_form(table),
    )  # fmt: skip
    return Stream(made, scale, scaled, squares)


def hand_over(
    residual: Tensor,
    scale: Tensor,
    eps: float,
    pool: Tensor,
    slots: Tensor,
    kept: Tensor,
    places: Tensor,
) -> Tensor:
    rows, width = residual.shape
    sequences = slots.shape[0]
    if rows % sequences or places.shape != slots.shape:
        raise OpError(
            f"{rows} rows, {places.shape[0]} places and {sequences} slots; each sequence has one "
            "place, one slot and as many rows"
        )
    for name, other in (("pool", pool), ("kept", kept)):
        alike = other.shape[1:] == residual.shape[1:] and other.dtype == residual.dtype
        if not alike or not other.is_contiguous():
            raise OpError(
                f"{name} is {other.dtype}{list(other.shape)}; it must hold contiguous rows like "
                f"{residual.dtype}{list(residual.shape)}"
            )
    block, warps = row_block(width, scale)
    before = torch.empty((rows, width), dtype=residual.dtype, device=residual.device)
    launch(
        kernels.hand_over_kernel, (rows,), residual.contiguous(), scale, pool, slots, kept, places,
        before, width, rows // sequences, eps, warps=warps, dependent=True, BLOCK=block,
    )  # fmt: skip
    return before


def draft_inputs(
    ids: Tensor,
    table: WeightMatrix,
    token_scale: Tensor,
    hidden: Tensor,
    hidden_scale: Tensor,
    eps: float,
    inner_scale: Tensor | None = None,
) -> Tensor:
    _check_ids(ids)
    count, width = ids.shape[0], table.columns
    if hidden.shape != (count, width) or hidden.stride(1) != 1:
        raise OpError(
            f"hidden is {list(hidden.shape)} with strides {hidden.stride()}; it must be "
            f"[{count}, {width}], rows dense"
        )
    if hidden.dtype != torch.bfloat16:
        raise OpError(f"hidden is {hidden.dtype}; it must be torch.bfloat16, as embeddings are")
    inner = hidden_scale if inner_scale is None else inner_scale
    (block, warps), *_ = (row_block(width, scale) for scale in (token_scale, hidden_scale, inner))
    codes, scales = codes_and_scales(table)
    out = torch.empty((count, 2 * width), dtype=hidden.dtype, device=hidden.device)
    launch(
        kernels.draft_inputs_kernel, (count, 2), ids.contiguous(), codes, scales, token_scale,
        hidden, hidden.stride(0), hidden_scale, inner, out,
        width, codes.shape[1], *scale_steps(table), eps,
        warps=warps, dependent=True, INNER=inner_scale is not None, BLOCK=block, **_form(table),
    )  # fmt: skip
    return out


def _check_ids(ids: Tensor) -> None:
    if ids.ndim != 1 or not ids.shape[0] or ids.dtype not in (torch.int32, torch.int64):
        raise OpError(f"ids is {ids.dtype}{list(ids.shape)}; it must be torch.int32[T >= 1]")


def _form(table: WeightMatrix) -> dict[str, Any]:
    """How codes of a table lie, as constants of kernels."""
    kind = "q4" if table.format == Q4_GROUPS.name else kind_of(table)
    return {"FORMAT": kind, "TILED": table.format == Q4_TILED}


OPS: Mapping[str, Callable[..., Any]] = {
    "embed_stream": embed_stream,
    "hand_over": hand_over,
    "draft_inputs": draft_inputs,
}
"""Op name to function."""
