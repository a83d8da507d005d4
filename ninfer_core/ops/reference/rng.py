"""Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", SC 2011) in integer arithmetic, so that every backend draws the same bits."""

from __future__ import annotations

import torch
from torch import Tensor

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
_ROUNDS = 10
_FEW = 64


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit words for a 64-bit key and a 128-bit counter, both as 32-bit words, low first."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def uniform(seeds: Tensor, positions: Tensor, purpose: int, index: int = 0) -> Tensor:
    """Numbers in [0, 1) with 24 bits, f32 of the shape of ``positions``; seeds i64 expand to it.

    The key is the seed's 64 bits, the counter ``(position, purpose, index div 4, 0)``, the word
    ``index mod 4``, shifted right by 8.
    """
    seeds, positions = seeds.expand_as(positions), positions.long()
    if seeds.numel() > _FEW:
        words = _philox_words(seeds, positions, purpose, index)
    else:
        pairs = zip(seeds.flatten().tolist(), positions.flatten().tolist(), strict=True)
        words = torch.tensor([_word(s, p, purpose, index) for s, p in pairs]).view(seeds.shape)
    return (words >> 8).float() * 2.0**-24


def _word(seed: int, position: int, purpose: int, index: int) -> int:
    key = seed & _MASK, (seed >> 32) & _MASK
    return philox(key, (position & _MASK, purpose, index // 4, 0))[index % 4]


def _philox_words(seeds: Tensor, positions: Tensor, purpose: int, index: int) -> Tensor:
    """:func:`philox` on int64 tensors; products of 32-bit words are split to stay below 2^63."""
    k0, k1 = seeds & _MASK, (seeds >> 32) & _MASK
    c0, c1 = positions & _MASK, torch.full_like(seeds, purpose)
    c2, c3 = torch.full_like(seeds, index // 4), torch.zeros_like(seeds)
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _M0)
        high1, low1 = _multiply(c2, _M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return (c0, c1, c2, c3)[index % 4]


def _multiply(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of the product of 32-bit words."""
    below = (x & 0xFFFF) * factor
    above = (x >> 16) * factor + (below >> 16)
    return above >> 16, ((above & 0xFFFF) << 16) | (below & 0xFFFF)
