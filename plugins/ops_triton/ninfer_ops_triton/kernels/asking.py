"""Programs that compute nothing: they ask the L2 cache for weights that kernels read later."""

from __future__ import annotations

import triton
import triton.language as tl

PIECE = tl.constexpr(1024)
"""Bytes that a thread asks for."""


@triton.jit
def ask_for(codes, size, second_codes, second_size, program, WARPS: tl.constexpr):
    """Program ``program`` of those that ask for the first ``size`` bytes of ``codes`` and the first
    ``second_size`` of ``second_codes``, both multiples of 16, ``WARPS * 32`` pieces each. From
    compute capability 9.0 on."""
    piece = program * (WARPS * 32) + tl.arange(0, WARPS * 32)
    offset = piece * PIECE
    second = offset - tl.cdiv(size, PIECE) * PIECE
    address = tl.where(second < 0, codes.to(tl.int64) + offset, second_codes.to(tl.int64) + second)
    left = tl.where(second < 0, size - offset, second_size - second)
    tl.inline_asm_elementwise(
        """{
        .reg .pred wanted;
        setp.gt.s32 wanted, $2, 0;
        @wanted cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.b32 $0, 0;
        }""",
        "=r,l,r",
        [address, tl.minimum(left, PIECE)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
