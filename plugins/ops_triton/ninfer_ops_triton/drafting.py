"""Convolution, candidates and walk of block drafters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import Candidates
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.integers import integers
from ninfer_ops_triton.kernels import drafting
from ninfer_ops_triton.launch import cdiv, launch, next_power_of_2

MOST_CANDIDATES = 64
LOGITS = 2048
"""Of one program that looks for candidates."""
CHANNELS = 1024
RANKS = 64
"""Columns of the selector's tables that are multiplied at once."""
LARGEST = 1 << 20
"""Token ids that a code has room for."""


def block_conv(x: Tensor, dynamic: Tensor, base: Tensor, side: int, width: int) -> Tensor:
    if x.ndim != 2 or x.stride(1) != 1 or width < 1 or x.shape[0] % width:
        raise OpError(f"x is {list(x.shape)}; it must be whole blocks of {width} dense rows")
    rows, channels = x.shape
    groups, rest = divmod(dynamic.shape[-1], 4)
    if dynamic.shape != (rows, 4 * groups) or rest or not groups or channels % groups:
        raise OpError(
            f"dynamic is {list(dynamic.shape)}; with x {list(x.shape)} it must be [{rows}, 4 G], "
            "G groups of whole channels"
        )
    if base.shape != (2, 2, channels) or base.dtype != torch.float32 or not base.is_contiguous():
        raise OpError(f"base is {base.dtype}{list(base.shape)}; it must be f32[2, 2, {channels}]")
    if side not in (0, 1) or dynamic.stride(1) != 1:
        raise OpError(
            f"side is {side}, dynamic has strides {dynamic.stride()}; sides are 0 and 1, rows dense"
        )
    out = torch.empty((rows, channels), dtype=x.dtype, device=x.device)
    launch(
        drafting.block_conv_kernel, (rows, cdiv(channels, CHANNELS)),
        x, x.stride(0), dynamic, dynamic.stride(0), base, out, channels, width,
        dependent=True, SIDE=side, GROUPS=groups, GROUP=channels // groups, BLOCK=CHANNELS,
    )  # fmt: skip
    return out


def draft_candidates(logits: Tensor, count: int, addressable: int) -> Candidates:
    rows, vocabulary = logits.shape
    if not 1 <= count <= min(MOST_CANDIDATES, addressable) or not addressable <= vocabulary:
        raise OpError(
            f"{count} candidates of {addressable} tokens of {vocabulary}; 1 to {MOST_CANDIDATES} "
            "are taken, and at most as many as there are tokens"
        )
    if logits.dtype != torch.float32 or logits.stride(1) != 1 or vocabulary > LARGEST:
        raise OpError(
            f"logits are {logits.dtype}{list(logits.shape)}; they must be f32[T, V], rows dense, "
            f"of at most {LARGEST} elements"
        )
    blocks, device, room = cdiv(addressable, LOGITS), logits.device, _room(count)
    best = torch.empty((rows, blocks, room), dtype=torch.int64, device=device)
    ids = integers(rows, count, dtype=torch.int32, device=device)
    values = torch.empty((rows, count), dtype=torch.float32, device=device)
    launch(
        drafting.candidate_blocks, (rows, blocks),
        logits, best, logits.stride(0), vocabulary, addressable, count,
        dependent=True, BLOCK=LOGITS, MOST=room,
    )  # fmt: skip
    codes = next_power_of_2(blocks * room)
    launch(
        drafting.candidate_finish, (rows,), best, ids, values, blocks, count,
        warps=4 if codes <= 2048 else 8, dependent=True, CODES=codes, MOST=room,
    )  # fmt: skip
    return Candidates(ids, values)


def draft_walk(
    candidates: Candidates,
    hidden: Tensor,
    anchors: Tensor,
    predecessor: Tensor,
    successor: Tensor,
) -> Tensor:
    rows, count = candidates.ids.shape
    sequences, rank = anchors.shape[0], predecessor.shape[1]
    if rows % sequences or candidates.values.shape != (rows, count) or count > MOST_CANDIDATES:
        raise OpError(
            f"candidates are {list(candidates.ids.shape)} and {list(candidates.values.shape)}; "
            f"{sequences} sequences take whole rows of at most {MOST_CANDIDATES}"
        )
    if hidden.shape != (rows, rank) or hidden.stride(1) != 1:
        raise OpError(f"hidden is {list(hidden.shape)}; it must be [{rows}, {rank}] side by side")
    for name, table in (("predecessor", predecessor), ("successor", successor)):
        if table.shape[1] != rank or not table.is_contiguous() or not table.is_floating_point():
            raise OpError(
                f"{name} is {table.dtype}{list(table.shape)}; it must be floats [V, {rank}], "
                "contiguous"
            )
    steps, device, room = rows // sequences, hidden.device, _room(count)
    following = torch.empty((rows, room), dtype=torch.int32, device=device)
    drafts = integers(sequences, steps, dtype=torch.int32, device=device)
    launch(
        drafting.pair_scores, (rows,),
        candidates.ids, candidates.values, hidden, hidden.stride(0), anchors,
        predecessor, successor, following, rank, steps, count,
        dependent=True, MOST=room, RANK=rank, BLOCK=RANKS,
    )  # fmt: skip
    launch(
        drafting.walk_pairs, (sequences,), candidates.ids, following, drafts, steps, count,
        warps=1, dependent=True, MOST=room,
    )  # fmt: skip
    return drafts


def _room(count: int) -> int:
    """Places for so many candidates, at least what a product takes."""
    return max(16, int(next_power_of_2(count)))


OPS: Mapping[str, Callable[..., Any]] = {
    "block_conv": block_conv,
    "draft_candidates": draft_candidates,
    "draft_walk": draft_walk,
}
"""Op name to function."""
