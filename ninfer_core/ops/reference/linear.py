"""Embedding, matrix products and heads.

A BLAS product chooses its kernel by the number of rows, so its bits change with the batch. The
decode route therefore multiplies blocks of numbers of rows that are known to agree: of one fixed
size, filled up with copies, or of any size from two on where those give equal bits (one row alone
is another algorithm). Neither that, nor that a row's place in a block does not matter, is BLAS's
promise (eight rows on AVX2 are six and two), so :func:`prepare_linear` tries it on each weight,
with the threads that will serve it, and falls back to smaller blocks and in the end to single rows.
"""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import LogprobRows, WeightMatrix
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference.logprobs import join_rows, logprobs
from ninfer_core.ops.reference.quantised import QUANTISED, widened, widened_rows

_BLOCK_ROWS = {
    **{f"reference.by_{rows}": (rows, rows) for rows in (1, 2, 4, 8)},
    **{f"reference.upto_{rows}": (2, rows) for rows in (4, 8)},
}
"""Resident formats: a ``weight`` plane f32[columns, rows], multiplied by at least and at most so
many rows at a time."""

_PLAIN = frozenset({"fp32", "fp64", "bf16", "fp16"})
_SCORED_ROWS = 128


def embedding(ids: Tensor, table: WeightMatrix) -> Tensor:
    if table.format in _BLOCK_ROWS:
        return table.planes["weight"].index_select(1, ids).t().contiguous()
    if table.format in QUANTISED:
        return widened_rows(table, ids)
    rows = _plain(table).index_select(0, ids)
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def prepare_linear(weight: WeightMatrix) -> WeightMatrix:
    if weight.format in _BLOCK_ROWS:
        return weight
    plane = widened(weight) if weight.format in QUANTISED else _plain(weight)
    turned = plane.to(torch.promote_types(plane.dtype, torch.float32)).t().contiguous()
    block = _choose_block(turned)
    form = f"reference.{'upto' if block > 2 and _counts_agree(turned, block) else 'by'}_{block}"
    return WeightMatrix(form, weight.rows, weight.columns, MappingProxyType({"weight": turned}))


def linear_decode(x: Tensor, weight: WeightMatrix) -> Tensor:
    turned = _prepared(weight)
    least, most = _BLOCK_ROWS[weight.format]
    if x.shape[0] <= most:
        return _multiply(x, turned, least)
    return torch.cat([_multiply(part, turned, least) for part in torch.split(x, most)])


def _multiply(x: Tensor, turned: Tensor, least: int) -> Tensor:
    rows = x.shape[0]
    if rows >= least:
        return torch.mm(x.contiguous(), turned)
    filled = torch.cat([x] * -(-least // rows))[:least]
    return torch.mm(filled, turned)[:rows]


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


def _choose_block(turned: Tensor) -> int:
    return next((rows for rows in (8, 4, 2) if _places_agree(turned, rows)), 1)


def _places_agree(turned: Tensor, block: int) -> bool:
    """Whether one row, put in every place of a block, gives the same bits in each."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(1, turned.shape[0], generator=generator, dtype=turned.dtype)
    product = torch.mm(row.expand(block, -1).contiguous(), turned)
    return torch.equal(product, product[:1].expand_as(product))


def _counts_agree(turned: Tensor, block: int) -> bool:
    """Whether fewer rows, down to two, give the bits of a whole block."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(block, turned.shape[0], generator=generator, dtype=turned.dtype)
    whole = torch.mm(rows, turned)
    parts = (torch.mm(rows[:count].contiguous(), turned) for count in range(2, block))
    return all(torch.equal(part, whole[: part.shape[0]]) for part in parts)


def _plain(weight: WeightMatrix) -> Tensor:
    if weight.format not in _PLAIN:
        raise OpError(
            f"the reference ops do not read weight format {weight.format!r}",
            hint=f"they read {', '.join(sorted(_PLAIN | QUANTISED))}",
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
    if weight.format not in _BLOCK_ROWS:
        raise OpError(f"a {weight.format!r} weight is not prepared; pass it to prepare_linear")
    return weight.planes["weight"]
