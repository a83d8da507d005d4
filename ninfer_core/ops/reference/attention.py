"""Attention over pages.

Every decode row is computed alone, by shapes that depend on its own length only, so neither the
batch nor the rows beside it in a verify round can change its bits. Pages are read where they lie
when their ids ascend without a gap, and gathered otherwise: the operands are the same. Formats with
scales are always gathered, and decoded then.
"""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ninfer_core.ops.contracts.values import PAGE_TOKENS, KvCache, PagedRows
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference.kv_store import decode
from ninfer_core.ops.reference.lanes import widen


def paged_decode_attention(q: Tensor, cache: KvCache, rows: PagedRows, scale: float) -> Tensor:
    grouped = (widen(q) * scale).view(q.shape[0], cache.keys.shape[2], -1, q.shape[2])
    queries = grouped.unbind()
    outputs = [torch.zeros_like(queries[0])] * len(queries)
    for first, pages, start, live in _sequences(rows):
        keys, values, begin = _read_pages(cache, pages, grouped.dtype)
        for row in range(live):
            seen = begin + rows.first, start + row + 1 - rows.first
            weights = torch.bmm(queries[first + row], widen(keys.narrow(1, *seen)).mT)
            outputs[first + row] = torch.bmm(
                torch.softmax(weights, dim=-1), widen(values.narrow(1, *seen))
            )
    return torch.stack(outputs).view(q.shape).to(q.dtype)


def paged_prefill_attention(q: Tensor, cache: KvCache, rows: PagedRows, scale: float) -> Tensor:
    ((_, pages, start, live),) = _sequences(rows)
    keys, values, begin = _read_pages(cache, pages, widen(q).dtype)
    length = start + live
    mask = torch.ones(live, length, dtype=torch.bool).tril(start) if start else None
    attended = scaled_dot_product_attention(
        widen(q[:live]).transpose(0, 1)[None],
        widen(keys.narrow(1, begin, length))[None],
        widen(values.narrow(1, begin, length))[None],
        mask,
        is_causal=start == 0,
        scale=scale,
        enable_gqa=True,
    )
    outputs = torch.zeros_like(q)
    outputs[:live] = attended.squeeze(0).transpose(0, 1)
    return outputs


def block_attention(
    q: Tensor,
    cache: KvCache,
    rows: PagedRows,
    scale: float,
    *,
    causal: bool,
    window: int | None = None,
) -> Tensor:
    """Rows of a sequence that see the same tokens are computed together."""
    if window is not None and window < rows.width:
        raise OpError(f"window is {window}; it must hold the {rows.width} rows of a block")
    kv, size = cache.keys.shape[2:]
    grouped = (widen(q) * scale).view(q.shape[0], kv, -1, size)
    outputs = torch.zeros_like(grouped)
    for first, pages, start, live in _sequences(rows):
        keys, values, begin = _read_pages(cache, pages, grouped.dtype)

        def seen(row: int, start: int = start, live: int = live) -> tuple[int, int]:
            low = rows.first if window is None else max(rows.first, start + row + 1 - window)
            return low, (start + row + 1 if causal else start + live)

        for (low, end), alike in groupby(range(live), seen):
            mine = [first + row for row in alike]
            span = begin + low, end - low
            queries = grouped[mine].transpose(0, 1).flatten(1, 2)
            weights = torch.softmax(torch.bmm(queries, widen(keys.narrow(1, *span)).mT), dim=-1)
            attended = torch.bmm(weights, widen(values.narrow(1, *span)))
            outputs[mine] = attended.view(kv, len(mine), -1, size).transpose(0, 1)
    return outputs.view(q.shape).to(q.dtype)


def _sequences(rows: PagedRows) -> list[tuple[int, list[int], int, int]]:
    """First row, page ids, start and live rows of each sequence that has a live row."""
    starts, lives = rows.starts.tolist(), rows.live.tolist()
    counts = [-(-(start + live) // PAGE_TOKENS) for start, live in zip(starts, lives, strict=True)]
    tables = rows.block_tables[:, : max(counts)].index_select(0, rows.table_rows).tolist()
    pages = [table[:count] for table, count in zip(tables, counts, strict=True)]
    firsts = range(0, rows.width * len(starts), rows.width)
    return [entry for entry in zip(firsts, pages, starts, lives, strict=True) if entry[-1]]


def _by_head(pool: Tensor) -> Tensor:
    """[P, 64, kv, D] as [kv, P * 64, D]; a view where the pool is contiguous."""
    return pool.flatten(0, 1).transpose(0, 1)


def _read_pages(cache: KvCache, pages: list[int], dtype: torch.dtype) -> tuple[Tensor, Tensor, int]:
    """Keys and values by head, [kv, tokens, D], and where the first of the pages begins in them."""
    first = pages[0]
    if cache.key_scales is None and pages == list(range(first, first + len(pages))):
        return _by_head(cache.keys), _by_head(cache.values), first * PAGE_TOKENS
    ids = torch.tensor(pages)
    keys, values = (
        _by_head(decode(cache.format, pool[ids], None if scales is None else scales[ids], dtype))
        for pool, scales in ((cache.keys, cache.key_scales), (cache.values, cache.value_scales))
    )
    return keys, values, 0
