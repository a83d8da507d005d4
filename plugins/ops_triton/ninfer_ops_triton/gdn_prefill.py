"""The gated delta rule over the many tokens of one sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ninfer_ops_triton.gdn import state_sizes
from ninfer_ops_triton.kernels import gdn_chunk as chunks
from ninfer_ops_triton.launch import cdiv, launch

CHUNK_TOKENS = 64
_SEGMENT = 2048
"""Tokens between which all chunks are prepared and then scanned: bounds the memory in between
(32 KB a chunk and head in 16 bits, 50 MB for 48 heads) and lets it stay in the L2 cache."""
_COLUMNS = 64
"""Of a head's state in one program of the scan."""


def gdn_chunk(
    qkv: Tensor, decay: Tensor, beta: Tensor, state: Tensor, slot: Tensor, key_heads: int
) -> Tensor:
    sizes = state_sizes(state, key_heads)
    tokens, heads = qkv.shape[0], sizes["NV"]
    out = decay.new_empty(tokens, heads, sizes["DV"])
    most = cdiv(min(tokens, _SEGMENT), CHUNK_TOKENS)
    matrices = qkv.new_empty(most, heads, 4, CHUNK_TOKENS, CHUNK_TOKENS)
    vectors = decay.new_empty(most, heads, 4, CHUNK_TOKENS)
    if tokens <= _SEGMENT:
        _prepare(qkv, decay, beta, matrices, vectors, sizes)
        _scan(qkv, state, slot, matrices, vectors, out, sizes)
        return out
    for first in range(0, tokens, _SEGMENT):
        rows, gates, strengths, results = (
            x[first : first + _SEGMENT] for x in (qkv, decay, beta, out)
        )
        _prepare(rows, gates, strengths, matrices, vectors, sizes)
        _scan(rows, state, slot, matrices, vectors, results, sizes)
    return out


def _prepare(
    qkv: Tensor,
    decay: Tensor,
    beta: Tensor,
    matrices: Tensor,
    vectors: Tensor,
    sizes: dict[str, Any],
) -> None:
    tokens = qkv.shape[0]
    launch(
        chunks.prepare_kernel, (cdiv(tokens, CHUNK_TOKENS), sizes["NV"]),
        qkv, qkv.stride(0), decay, decay.stride(0), beta, beta.stride(0),
        matrices, vectors, tokens,
        dependent=True, NK=sizes["NK"], NV=sizes["NV"], DK=sizes["DK"],
    )  # fmt: skip


def _scan(
    qkv: Tensor,
    state: Tensor,
    slot: Tensor,
    matrices: Tensor,
    vectors: Tensor,
    out: Tensor,
    sizes: dict[str, Any],
) -> None:
    columns = min(_COLUMNS, sizes["DV"])
    launch(
        chunks.scan_kernel, (sizes["DV"] // columns, sizes["NV"]),
        qkv, qkv.stride(0), state, state.stride(0), slot, matrices, vectors, out, qkv.shape[0],
        dependent=True, stages=2, BV=columns, **sizes,
    )  # fmt: skip


OPS: dict[str, Callable[..., Any]] = {"gdn_chunk": gdn_chunk}
