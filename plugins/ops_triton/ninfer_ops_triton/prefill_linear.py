"""Products of the prefill route: the library's, over bf16 weights, or over eight bits on both sides
(:mod:`ninfer_ops_triton.rounded`) where weight, device and number of rows allow it.

Else quantised weights are widened to bf16 a block of rows at a time. A block is large: of a few
thousand rows the library makes too few programs to fill the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import LogprobRows, WeightMatrix
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.kernels.widen import widen_kernel
from ninfer_ops_triton.launch import cdiv, launch
from ninfer_ops_triton.linear import check_rows
from ninfer_ops_triton.rounded import applies, rounded_product
from ninfer_ops_triton.sampling import logprobs
from ninfer_ops_triton.weights import codes_and_scales, kind_of, stored_rows

WIDENED = 96 << 20
"""Most elements of a widened block: 192 MiB, one whole weight of most."""

SCORED_ROWS, SCORED = 128, 16 << 20
"""Prompt rows whose logits exist at the same time, and elements of a widened block beside them."""

_TILES = {"fp8": (4, 1024), "q4": (16, 256)}
"""Rows and columns that a program widens."""


def linear_prefill(x: Tensor, weight: WeightMatrix) -> Tensor:
    check_rows(x, weight.columns, "x")
    if applies(weight, x.shape[0]):
        return rounded_product(x, weight)
    if kind_of(weight) == "bf16":
        return torch.mm(x, weight.planes["weight"].t())
    out = x.new_empty(x.shape[0], weight.rows)
    for first, last, block in widened_blocks(weight, weight.rows):
        torch.mm(x, block.t(), out=out[:, first:last])
    return out


def linear_prefill_add(x: Tensor, weight: WeightMatrix, residual: Tensor) -> Tensor:
    check_rows(x, weight.columns, "x")
    check_rows(residual, weight.rows, "residual", x.shape[0])
    if applies(weight, x.shape[0]):
        return rounded_product(x, weight).add_(residual)
    # In place: elsewhere the library would have the residual copied there first.
    if kind_of(weight) == "bf16":
        return residual.addmm_(x, weight.planes["weight"].t())
    for first, last, block in widened_blocks(weight, weight.rows):
        residual[:, first:last].addmm_(x, block.t())
    return residual


def prompt_logprobs(
    hidden: Tensor, weight: WeightMatrix, addressable: int, targets: Tensor, top: int
) -> LogprobRows:
    check_rows(hidden, weight.columns, "hidden")
    if tuple(targets.shape) != (hidden.shape[0],):
        raise OpError(
            f"targets is {list(targets.shape)}; it must be [{hidden.shape[0]}], one for each row"
        )
    if not 0 <= top <= addressable <= weight.rows:
        raise OpError(
            f"top {top}, {addressable} addressable rows and {weight.rows} rows must ascend from 0"
        )
    blocks = zip(*(torch.split(part, SCORED_ROWS) for part in (hidden, targets)), strict=True)
    parts = [logprobs(logits(rows, weight, addressable), ids, top) for rows, ids in blocks]
    return LogprobRows(
        torch.cat([part.chosen for part in parts]),
        torch.cat([part.top_ids for part in parts]),
        torch.cat([part.top_values for part in parts]),
    )


def logits(hidden: Tensor, weight: WeightMatrix, addressable: int) -> Tensor:
    """f32[n, addressable], not rounded to bf16 on the way."""
    if kind_of(weight) == "bf16":
        return _wide_mm(hidden, weight.planes["weight"][:addressable])
    out = torch.empty((hidden.shape[0], addressable), dtype=torch.float32, device=hidden.device)
    for first, last, block in widened_blocks(weight, addressable, SCORED):
        out[:, first:last] = _wide_mm(hidden, block)
    return out


def widened_blocks(
    weight: WeightMatrix, rows: int, most: int | None = None
) -> Iterator[tuple[int, int, Tensor]]:
    """``(first, last, bf16[last - first, columns])`` of the first ``rows`` rows, block by block of
    about ``most`` elements or less (WIDENED).

    Blocks share their memory: one is overwritten when the next is asked for.
    """
    kind, columns = kind_of(weight), weight.columns
    codes, scales = codes_and_scales(weight)
    blocks = max(1, cdiv(rows * columns, most or WIDENED))
    step = min(rows, cdiv(cdiv(rows, blocks), 128) * 128)
    block_r, block_k = _TILES[kind]
    buffer = torch.empty((step, columns), dtype=torch.bfloat16, device=codes.device)
    for first in range(0, rows, step):
        last = min(rows, first + step)
        launch(
            widen_kernel, (cdiv(last - first, block_r), cdiv(columns, block_k)),
            codes, scales, buffer, first, last, columns, codes.shape[1], stored_rows(weight),
            FORMAT=kind, BLOCK_R=block_r, BLOCK_K=block_k,
        )  # fmt: skip
        yield first, last, buffer[: last - first]


def _wide_mm(x: Tensor, weight: Tensor) -> Tensor:
    """fp32 sums of bf16 products, kept in fp32; ATen's CPU has no such product."""
    if x.is_cuda:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return torch.mm(x.float(), weight.t().float())


OPS: Mapping[str, Callable[..., Any]] = {
    "linear_prefill": linear_prefill,
    "linear_prefill_add": linear_prefill_add,
    "prompt_logprobs": prompt_logprobs,
}
"""Op name to function."""
