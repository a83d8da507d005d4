"""torch's own attention over pages: what errors of attention kernels are held against."""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ninfer_core.ops.contracts.values import KvCache, PagedRows

CHECKED = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1"
"""Under a memory checker torch's flash kernel is not used: joining its splits it writes past the
tensor of log-sums (torch 2.11, head size 256, one row), which ends the process there."""

KERNELS = defaultdict(
    lambda: SDPBackend.MATH if CHECKED else SDPBackend.FLASH_ATTENTION,
    {torch.float32: SDPBackend.MATH},
)
"""torch's own kernel by dtype: flash attention knows no float32."""


def torch_attention(
    q: Tensor,
    cache: KvCache,
    rows: PagedRows,
    scale: float,
    *,
    causal: bool = True,
    window: int | None = None,
) -> Tensor:
    """What ``block_attention`` gives, [T, heads, D] in the dtype of ``q`` and where it lies, zeros
    in rows that are not live.

    ``cache`` and ``rows`` lie on the CPU, the cache decoded to float64. Keys and values are rounded
    to the dtype of ``q``; rows that see the same tokens go through torch's kernel together, which
    needs no mask; the flash kernel multiplies in the dtype of ``q`` and rounds weights as well.
    """
    kv, size = cache.keys.shape[2:]
    grouped = q.view(q.shape[0], kv, -1, size)
    result = torch.zeros_like(grouped)
    placed = zip(rows.starts.tolist(), rows.live.tolist(), rows.table_rows.tolist(), strict=True)
    for sequence, (start, live, table_row) in enumerate(placed):
        pages = rows.block_tables[table_row, : -(-(start + live) // 64)].long()
        keys, values = (
            pool[pages].flatten(0, 1).transpose(0, 1).to(q.device, q.dtype)
            for pool in (cache.keys, cache.values)
        )

        def seen(row: int, start: int = start, live: int = live) -> tuple[int, int]:
            low = rows.first if window is None else max(rows.first, start + row + 1 - window)
            return low, start + (row + 1 if causal else live)

        for (low, end), alike in groupby(range(live), seen):
            mine = [sequence * rows.width + row for row in alike]
            queries = grouped[mine].transpose(0, 1).flatten(1, 2)
            with sdpa_kernel(KERNELS[q.dtype]):
                attended = scaled_dot_product_attention(
                    queries[None], keys[None, :, low:end], values[None, :, low:end], scale=scale
                )
            result[mine] = attended[0].view(kv, len(mine), -1, size).transpose(0, 1)
    return result.view(q.shape)
