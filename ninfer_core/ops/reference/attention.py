"""Attention over pages.

Every decode row is computed alone, by shapes that depend on its own length only, so neither the
batch nor the rows beside it in a verify round can change its bits. Pages are read where they lie
when their ids ascend without a gap, and gathered otherwise: the operands are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ninfer_core.ops.contracts.values import PAGE_TOKENS, KvCache, PagedRows
from ninfer_core.ops.reference.lanes import compute_dtype


def paged_decode_attention(q: Tensor, cache: KvCache, rows: PagedRows, scale: float) -> Tensor:
    scaled = q.to(compute_dtype(q)) * scale
    outputs = torch.zeros_like(scaled)
    for first, table_row, start, live in _sequences(rows):
        keys, values = _read_pages(cache, rows.block_tables[table_row], start + live, scaled.dtype)
        for row in range(live):
            outputs[first + row] = _attend(scaled[first + row], keys, values, start + row + 1)
    return outputs.to(q.dtype)


def paged_prefill_attention(q: Tensor, cache: KvCache, rows: PagedRows, scale: float) -> Tensor:
    ((_, table_row, start, live),) = _sequences(rows)
    wide = q[:live].to(compute_dtype(q)).transpose(0, 1).unsqueeze(0)
    length = start + live
    pages = _read_pages(cache, rows.block_tables[table_row], length, wide.dtype)
    keys, values = (plane.transpose(0, 1).flatten(1, 2)[None, :, :length] for plane in pages)
    mask = torch.ones(live, length, dtype=torch.bool).tril(start) if start else None
    attended = scaled_dot_product_attention(
        wide, keys, values, mask, is_causal=start == 0, scale=scale, enable_gqa=True
    )
    outputs = torch.zeros_like(q)
    outputs[:live] = attended.squeeze(0).transpose(0, 1)
    return outputs


def _sequences(rows: PagedRows) -> list[tuple[int, int, int, int]]:
    """First row, table row, start and live rows of each sequence that has a live row."""
    firsts = range(0, rows.width * rows.starts.shape[0], rows.width)
    columns = (rows.table_rows.tolist(), rows.starts.tolist(), rows.live.tolist())
    return [entry for entry in zip(firsts, *columns, strict=True) if entry[-1]]


def _read_pages(
    cache: KvCache, table: Tensor, tokens: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The pages that hold the first ``tokens`` tokens, two of [pages, kv, 64, D]."""
    ids = table[: -(-tokens // PAGE_TOKENS)]
    numbers = ids.tolist()
    first = numbers[0]
    if numbers == list(range(first, first + len(numbers))):
        run = slice(first, first + len(numbers))
        return cache.keys[run].to(dtype), cache.values[run].to(dtype)
    return cache.keys.index_select(0, ids).to(dtype), cache.values.index_select(0, ids).to(dtype)


def _attend(query: Tensor, keys: Tensor, values: Tensor, length: int) -> Tensor:
    """One row: query [nh, D] over the first ``length`` tokens of pages [pages, kv, 64, D].

    Whole pages go through one batched product, the rest of the last page through another, so that
    nothing behind the row's own token is ever read.
    """
    kv = keys.shape[1]
    grouped = query.view(kv, -1, query.shape[1])
    whole, rest = divmod(length, PAGE_TOKENS)
    if not rest:
        weights = torch.softmax(_score_pages(grouped, keys[:whole]), dim=-1)
        return _mix_pages(weights, values[:whole]).view_as(query)
    scores = torch.bmm(grouped, keys[whole, :, :rest].mT)
    if not whole:
        return torch.bmm(torch.softmax(scores, dim=-1), values[0, :, :rest]).view_as(query)
    scores = torch.cat([_score_pages(grouped, keys[:whole]), scores], dim=-1)
    weights, last = torch.softmax(scores, dim=-1).split_with_sizes([whole * PAGE_TOKENS, rest], -1)
    mixed = _mix_pages(weights, values[:whole])
    return torch.baddbmm(mixed, last, values[whole, :, :rest]).view_as(query)


def _score_pages(grouped: Tensor, keys: Tensor) -> Tensor:
    """[kv, g, D] x [pages, kv, 64, D] → [kv, g, pages * 64]."""
    pages, kv = keys.shape[:2]
    repeated = grouped.expand(pages, -1, -1, -1).flatten(0, 1)
    scores = torch.bmm(repeated, keys.flatten(0, 1).mT)
    return scores.view(pages, kv, -1, PAGE_TOKENS).permute(1, 2, 0, 3).flatten(2, 3)


def _mix_pages(weights: Tensor, values: Tensor) -> Tensor:
    """[kv, g, pages * 64] x [pages, kv, 64, D] → [kv, g, D]."""
    pages, kv = values.shape[:2]
    apart = weights.reshape(kv, -1, pages, PAGE_TOKENS).permute(2, 0, 1, 3).flatten(0, 1)
    return torch.bmm(apart, values.flatten(0, 1)).view(pages, kv, -1, values.shape[3]).sum(0)
