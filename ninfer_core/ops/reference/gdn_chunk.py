"""The chunk form of the gated delta rule: triangular solves of 64 tokens, then a scan of chunks.

With G the running sum of decays inside a chunk and S the state before it:
``A = I + strict_lower(beta_i (k_i . k_j) exp(G_i - G_j))``, ``U = A^-1 (beta V)``,
``W = A^-1 (beta exp(G) K)``, ``N = U - W S``, ``O = (Q exp(G)) S + ((Q K^T) exp(G_i - G_j)) N``,
``S' = exp(G_last) S + (K exp(G_last - G))^T N``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ninfer_core.ops.reference.gdn import prepare_tokens

CHUNK_TOKENS = 64


def gdn_chunk(
    qkv: Tensor, decay: Tensor, beta: Tensor, state: Tensor, slot: Tensor, key_heads: int
) -> Tensor:
    tokens = prepare_tokens(qkv, decay, beta, state, key_heads)
    size = min(CHUNK_TOKENS, qkv.shape[0])
    queries, keys, values, sums, betas = (
        _in_chunks(x, size) for x in (*tokens.qk.unbind(2), tokens.values, decay, beta)
    )
    sums = sums.cumsum(-1)
    ratios = _decay_ratios(sums)
    growth = sums.exp().unsqueeze(-1)
    corrections, reads = _solve(keys, values, betas.unsqueeze(-1), ratios, growth)
    tail = (sums[..., -1:] - sums).exp().unsqueeze(-1)
    scores = (queries @ keys.mT) * ratios
    chunks = (corrections, reads, queries * growth, scores, (keys * tail).mT, growth[..., -1:, :])
    current = state[int(slot)]
    outputs = []
    for correction, read, query, score, key, keep in zip(*chunks, strict=True):
        update = correction - read @ current
        outputs.append(query @ current + score @ update)
        current = keep * current + key @ update
    state[int(slot)] = current
    return torch.stack(outputs).transpose(1, 2).flatten(0, 1)[: qkv.shape[0]]


def _in_chunks(x: Tensor, size: int) -> Tensor:
    """[n, nv, ...] → [chunks, nv, size, ...]; zeros as padding leave the state as it is."""
    missing = -x.shape[0] % size
    padded = pad(x, (0, 0) * (x.dim() - 1) + (0, missing))
    return padded.view(-1, size, *x.shape[1:]).transpose(1, 2)


def _decay_ratios(sums: Tensor) -> Tensor:
    """``exp(G_i - G_j)`` for j <= i, else 0; masked before exp, which could overflow above."""
    gaps = sums.unsqueeze(-1) - sums.unsqueeze(-2)
    above = torch.ones(gaps.shape[-2:], dtype=torch.bool).triu(1)
    return gaps.masked_fill(above, float("-inf")).exp()


def _solve(
    keys: Tensor, values: Tensor, betas: Tensor, ratios: Tensor, growth: Tensor
) -> tuple[Tensor, Tensor]:
    """U and W of all chunks at once; the unit diagonal of A is implied by ``unitriangular``."""
    system = (betas * (keys @ keys.mT)) * ratios
    right = torch.cat([betas * values, betas * growth * keys], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    corrections, reads = solved.split_with_sizes([values.shape[-1], keys.shape[-1]], dim=-1)
    return corrections, reads
