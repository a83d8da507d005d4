"""Products of the decode route, alone and fused with what stands around them; embedding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ninfer_core.artifact.formats import Q4_GROUPS
from ninfer_core.ops.contracts.values import Stream, WeightMatrix
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton import cuts, tiles, workspace
from ninfer_ops_triton.kernels.embedding import embedding_kernel
from ninfer_ops_triton.kernels.gemv import product_kernel
from ninfer_ops_triton.launch import cdiv, launch, next_power_of_2
from ninfer_ops_triton.weights import (
    Q4_TILED,
    codes_and_scales,
    kind_of,
    prepare_linear,
    scale_steps,
    stored_rows,
)

FEW_ROWS = 8
"""Up to so many activation rows a tile's limit of registers holds."""

_EMBEDDED = 1024


def embedding(ids: Tensor, table: WeightMatrix) -> Tensor:
    """Returns bf16[T, columns].

    Not a dependent launch: it starts once all earlier kernels are done, and with it a forward pass
    begins, so that what was settled before may be read by any later kernel at any time.
    """
    kind = "q4" if table.format == Q4_GROUPS.name else kind_of(table)
    if ids.ndim != 1 or ids.dtype not in (torch.int32, torch.int64):
        raise OpError(f"ids is {ids.dtype}{list(ids.shape)}; it must be torch.int32[T]")
    codes, scales = codes_and_scales(table)
    out = torch.empty((ids.shape[0], table.columns), dtype=torch.bfloat16, device=codes.device)
    if ids.shape[0]:
        launch(
            embedding_kernel, (ids.shape[0], cdiv(table.columns, _EMBEDDED)),
            ids.contiguous(), codes, scales, out, table.columns, codes.shape[1],
            *scale_steps(table),
            dependent=False, FORMAT=kind, TILED=table.format == Q4_TILED, BLOCK=_EMBEDDED,
        )  # fmt: skip
    return out


def linear_decode(x: Tensor, weight: WeightMatrix) -> Tensor:
    return product(x, weight, "store")


def norm_linear(stream: Stream, eps: float, weight: WeightMatrix) -> Tensor:
    return product(normed_rows(stream), weight, "store", squares=stream.squares, eps=eps)


def linear_add(x: Tensor, weight: WeightMatrix, stream: Stream, scale: Tensor) -> Stream:
    rows = weight.rows
    check_rows(x, weight.columns, "x")
    check_rows(stream.residual, rows, "residual", x.shape[0])
    if tuple(scale.shape) != (rows,) or scale.dtype != torch.float32:
        raise OpError(
            f"scale is {scale.dtype}{list(scale.shape)}; it must be torch.float32[{rows}]"
        )
    tile = tiles.choose("linear", kind_of(weight), rows, weight.columns)
    squares = torch.empty(
        (x.shape[0], cdiv(rows, tile.block_r)), dtype=torch.float32, device=x.device
    )
    following = Stream(
        torch.empty_like(stream.residual), scale, torch.empty_like(stream.residual), squares
    )
    product(x, weight, "add", residual=stream.residual.contiguous(), following=following)
    return following


def norm_swiglu(stream: Stream, eps: float, weight: WeightMatrix) -> Tensor:
    if weight.rows % 2:
        raise OpError(f"gate and up are two halves; a weight of {weight.rows} rows has none")
    return product(normed_rows(stream), weight, "swiglu", squares=stream.squares, eps=eps)


def normed_rows(stream: Stream) -> Tensor:
    """The rows that a normed product multiplies. Raises OpError for another backend's stream."""
    if stream.scaled is None or stream.squares is None:
        raise OpError("the stream was not opened by this backend", hint="call open_stream first")
    return stream.scaled


def product(
    x: Tensor,
    weight: WeightMatrix,
    epilogue: str,
    *,
    squares: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    following: Stream | None = None,
    live_rows: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """One launch of :func:`ninfer_ops_triton.kernels.gemv.product_kernel`.

    x bf16[T, columns]. ``epilogue``: ``store`` gives x[T, rows]; ``swiglu`` gives x[T, rows / 2];
    ``head`` gives f32[T, rows], -inf from ``live_rows`` on; ``add`` adds ``residual`` x[T, rows]
    and fills ``following``. With ``squares`` f32[T, P] the result is divided by the root of their
    mean over the columns. ``out`` is where the result goes, if not to a new tensor.
    """
    kind = kind_of(weight)
    check_rows(x, weight.columns, "x")
    out_rows = weight.rows // 2 if epilogue == "swiglu" else weight.rows
    live_rows = out_rows if live_rows is None else live_rows
    if not 1 <= live_rows <= out_rows:
        raise OpError(f"{live_rows} addressable rows of {out_rows}; there must be 1 to {out_rows}")
    # Four activations are read as a word.
    x = _quads(x.contiguous()) if kind == "q4" else x.contiguous()
    out = _output(x, out_rows, epilogue, following, out)
    tile = tiles.choose(_fusion(epilogue, squares), kind, out_rows, weight.columns)
    n, split = tiles.padded_rows(x.shape[0]), tile.parts(x.shape[1])
    cut = cuts.cut_for(tile, n, _fusion(epilogue, squares), kind, out_rows, weight.columns)
    grid = (cdiv(x.shape[0], n), cdiv(out_rows, cut.block_r), split * cut.share)
    partials, counters = _scratch(out, grid, cut.block_r * n)
    codes, scales = codes_and_scales(weight)
    parts = 1 if squares is None else squares.shape[1]
    after = following or Stream(x, x, x, x)
    if kind == "q4" and tile.early > 1:
        raise OpError(f"{tile} is no tile of four-bit weights: early is 0 or 1 there")
    early = tile.first_steps(x.shape[1])
    broad = early * tile.block_k
    whole = kind != "q4" and 0 < x.shape[1] <= broad
    limits = {"maxnreg": tile.registers} if tile.registers and n <= FEW_ROWS else {}
    launch(
        product_kernel, grid,
        x, codes, scales, x if squares is None else squares, x if residual is None else residual,
        after.scale, out, after.scaled, after.squares, partials, counters,
        x.shape[0], out_rows, live_rows, weight.columns, x.shape[1] // 4,
        codes.shape[1] * codes.itemsize, scales.shape[0] if kind == "q4" else 1,
        stored_rows(weight), parts, eps,
        warps=cut.warps, stages=cut.stages, dependent=tile.dependent, releasing=True,
        FORMAT=kind, NORM=squares is not None, PARTS=max(16, next_power_of_2(parts)),
        EPILOGUE=epilogue, BLOCK_R=cut.block_r, PART_R=min(tile.block_r, cut.block_r),
        BLOCK_K=tile.block_k, G=tile.groups // cut.share, N=n, SPLIT=split, SHARE=cut.share,
        STAGES=cut.stages, NEAR=cut.near,
        AHEAD=tile.ahead if tile.dependent and not whole else 0,
        EARLY=early, WHOLE=whole, RELEASE=tile.release,
        EVEN_K=x.shape[1] % tile.block_k == 0,
        EVEN_EARLY=x.shape[1] >= broad and (early > 1 or x.shape[1] % tile.block_k == 0),
        ALONE=x.shape[0] == 1,
        PAIRS=out_rows % 2 == 0, **limits,
    )  # fmt: skip
    return out


def _output(
    x: Tensor, rows: int, epilogue: str, following: Stream | None, out: Tensor | None
) -> Tensor:
    if following is not None:
        return following.residual
    dtype, shape = torch.float32 if epilogue == "head" else x.dtype, (x.shape[0], rows)
    if out is None:
        return torch.empty(shape, dtype=dtype, device=x.device)
    if tuple(out.shape) != shape or out.dtype != dtype or not out.is_contiguous():
        raise OpError(
            f"out is {out.dtype}{list(out.shape)}; it must be {dtype}{list(shape)}, rows adjacent"
        )
    return out


def _quads(values: Tensor) -> Tensor:
    """Contiguous values, rows filled with zeros up to a multiple of four, where words may begin."""
    if values.shape[-1] % 4:
        return pad(values, (0, -values.shape[-1] % 4))
    return values if values.data_ptr() % 8 == 0 else values.clone()


def _fusion(epilogue: str, squares: Tensor | None) -> str:
    if epilogue in ("swiglu", "head"):
        return epilogue
    return "linear" if squares is None else "norm"


def _scratch(out: Tensor, grid: tuple[int, int, int], elements: int) -> tuple[Tensor, Tensor]:
    """Partial sums and counters where columns are split; else ``out``, which nothing looks at."""
    if grid[2] == 1:
        return out, out
    if grid[0] * grid[1] > workspace.COUNTERS:
        raise OpError(f"a product of {list(out.shape)} has too many tiles to split its columns")
    partials = torch.empty(math.prod(grid) * 2 * elements, dtype=torch.float32, device=out.device)
    return partials, workspace.counters(out.device)


def check_rows(x: Tensor, columns: int, name: str, count: int | None = None) -> None:
    """Raises OpError unless x is bf16[T, columns] with T >= 1, or T = ``count``."""
    rows = x.shape[0] if x.ndim == 2 and count is None else count
    if not rows or tuple(x.shape) != (rows, columns) or x.dtype != torch.bfloat16:
        raise OpError(
            f"{name} is {x.dtype}{list(x.shape)}; it must be torch.bfloat16"
            f"[{'T >= 1' if count is None else count}, {columns}]"
        )


OPS: Mapping[str, Callable[..., Any]] = {
    "prepare_linear": prepare_linear,
    "embedding": embedding,
    "linear_decode": linear_decode,
    "norm_linear": norm_linear,
    "linear_add": linear_add,
    "norm_swiglu": norm_swiglu,
}
"""Op name to function."""
