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
from ninfer_core.ops.reference.lanes import widen


def paged_decode_attention(q: Tensor, cache: KvCache, rows: PagedRows, scale: float) -> Tensor:
    scaled = widen(q) * scale
    outputs = torch.zeros_like(scaled)
    for first, table_row, start, live in _sequences(rows):
        keys, values = _read_pages(cache, rows.block_tables[table_row], start + live)
        for row in range(live):
            length = start + row + 1
            outputs[first + row] = _attend(scaled[first + row], keys[:length], values[:length])
    return outputs.to(q.dtype)


def paged_prefill_attention(q: Tensor, cache: KvCache, rows: PagedRows, scale: float) -> Tensor:
    ((_, table_row, start, live),) = _sequences(rows)
    keys, values = _read_pages(cache, rows.block_tables[table_row], start + live)
    mask = torch.ones(live, start + live, dtype=torch.bool).tril(start) if start else None
    q_heads, k_heads, v_heads = (x.transpose(0, 1)[None] for x in (widen(q[:live]), keys, values))
    attended = scaled_dot_product_attention(
        q_heads, k_heads, v_heads, mask, is_causal=start == 0, scale=scale, enable_gqa=True
    )
    outputs = torch.zeros_like(q)
    outputs[:live] = attended.squeeze(0).transpose(0, 1)
    return outputs


def _sequences(rows: PagedRows) -> list[tuple[int, int, int, int]]:
    """First row, table row, start and live rows of each sequence that has a live row."""
    firsts = range(0, rows.width * rows.starts.shape[0], rows.width)
    columns = (rows.table_rows.tolist(), rows.starts.tolist(), rows.live.tolist())
    return [entry for entry in zip(firsts, *columns, strict=True) if entry[-1]]


def _read_pages(cache: KvCache, table: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Keys and values of the first ``tokens`` tokens, two of [tokens, kv, D]."""
    ids = table[: -(-tokens // PAGE_TOKENS)]
    numbers = ids.tolist()
    first, last = numbers[0], numbers[-1]
    if numbers == list(range(first, last + 1)):
        pages = cache.keys[first : last + 1], cache.values[first : last + 1]
    else:
        pages = cache.keys.index_select(0, ids), cache.values.index_select(0, ids)
    keys, values = (widen(page.flatten(0, 1)[:tokens]) for page in pages)
    return keys, values


def _attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One row: query [nh, D] over keys and values [tokens, kv, D]."""
    grouped = query.view(keys.shape[1], -1, query.shape[1])
    weights = torch.softmax(torch.bmm(grouped, keys.permute(1, 2, 0)), dim=-1)
    return torch.bmm(weights, values.transpose(0, 1)).view_as(query)
