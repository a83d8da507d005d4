"""Embedding, matrix products and heads.

A BLAS product chooses its kernel by the number of rows, so its bits change with the batch. The
decode route therefore multiplies exactly eight rows at a time, padded with zeros: the same kernel
whatever the batch. That a row's place among the eight does not matter either is not BLAS's promise,
so :func:`prepare_linear` tries it on each weight and otherwise multiplies row by row.
"""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn.functional import pad

from ninfer_core.ops.contracts.values import LogprobRows, WeightMatrix
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference.logprobs import join_rows, logprobs

BLOCK = 8
"""Rows of one product on the decode route."""

BLOCKS = "reference.blocks"
ROWS = "reference.rows"
_PLAIN = frozenset({"fp32", "fp64", "bf16", "fp16"})
_SCORED_ROWS = 128


def embedding(ids: Tensor, table: WeightMatrix) -> Tensor:
    if table.format in (BLOCKS, ROWS):
        return table.planes["weight"].index_select(1, ids).t().contiguous()
    rows = _plain(table).index_select(0, ids)
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def prepare_linear(weight: WeightMatrix) -> WeightMatrix:
    if weight.format in (BLOCKS, ROWS):
        return weight
    plane = _plain(weight)
    turned = plane.to(torch.promote_types(plane.dtype, torch.float32)).t().contiguous()
    route = BLOCKS if _places_agree(turned) else ROWS
    return WeightMatrix(route, weight.rows, weight.columns, MappingProxyType({"weight": turned}))


def linear_decode(x: Tensor, weight: WeightMatrix) -> Tensor:
    turned = _prepared(weight)
    if weight.format == ROWS:
        return torch.cat([torch.mm(row, turned) for row in torch.split(x.contiguous(), 1)])
    rows = x.shape[0]
    if rows < BLOCK:
        return torch.mm(pad(x, (0, 0, 0, BLOCK - rows)), turned)[:rows]
    if rows == BLOCK:
        return torch.mm(x.contiguous(), turned)
    blocks = torch.split(pad(x, (0, 0, 0, -rows % BLOCK)), BLOCK)
    return torch.cat([torch.mm(block, turned) for block in blocks])[:rows]


def linear_prefill(x: Tensor, weight: WeightMatrix) -> Tensor:
    return torch.mm(x, _prepared(weight))


def lm_head(hidden: Tensor, weight: WeightMatrix, addressable: int) -> Tensor:
    return _mask_padding(linear_decode(hidden, weight), addressable)


def prompt_logprobs(
    hidden: Tensor, weight: WeightMatrix, addressable: int, targets: Tensor, top: int
) -> LogprobRows:
    parts = []
    blocks = (torch.split(x, _SCORED_ROWS) for x in (hidden, targets))
    for rows, wanted in zip(*blocks, strict=True):
        logits = _mask_padding(linear_prefill(rows, weight), addressable)
        parts.append(logprobs(logits, wanted, top))
    return join_rows(parts)


def _mask_padding(logits: Tensor, addressable: int) -> Tensor:
    if addressable < logits.shape[1]:
        logits[:, addressable:] = float("-inf")
    return logits


def _places_agree(turned: Tensor) -> bool:
    """Whether one row, put in all eight places, gives the same bits in each."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(1, turned.shape[0], generator=generator, dtype=turned.dtype)
    product = torch.mm(row.expand(BLOCK, -1).contiguous(), turned)
    return torch.equal(product, product[:1].expand_as(product))


def _plain(weight: WeightMatrix) -> Tensor:
    if weight.format not in _PLAIN:
        raise OpError(
            f"the reference ops do not read weight format {weight.format!r}",
            hint=f"they read {', '.join(sorted(_PLAIN))}",
        )
    plane = weight.planes["weight"]
    if tuple(plane.shape) != (weight.rows, weight.columns):
        raise OpError(
            f"a {weight.format} weight has shape {list(plane.shape)}; "
            f"it must be [{weight.rows}, {weight.columns}]"
        )
    if plane.device.type != "cpu":
        raise OpError(f"the reference ops multiply on the CPU, not on {plane.device}")
    return plane


def _prepared(weight: WeightMatrix) -> Tensor:
    if weight.format not in (BLOCKS, ROWS):
        raise OpError(f"a {weight.format!r} weight is not prepared; pass it to prepare_linear")
    return weight.planes["weight"]
