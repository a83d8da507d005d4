"""Tiles of the decode products: loads, products, and groups of columns side by side.

A step's tiles have an axis of ``G`` groups before the others, but for one group, where they have
none.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def activations(
    x_rows, k, present, columns, G: tl.constexpr, EVEN_K: tl.constexpr, ONE: tl.constexpr
):
    """A tile [W, N] or [G, W, N], or [W, 1] or [G, W, 1] (ONE); rows and columns that are not there
    are 0."""
    down = down_columns(k, G)
    if ONE and EVEN_K:
        tile = tl.load(x_rows + down)
    else:
        there = present if EVEN_K else present & (down < columns)
        tile = tl.load(x_rows + down, mask=there, other=0)
    return tile


@triton.jit
def side_by_side(x, N: tl.constexpr):
    """[W, 1] or [G, W, 1] to N equal columns; N columns as they are."""
    if x.shape[-1] != N:
        if len(x.shape) == 2:
            x = tl.broadcast_to(x, [x.shape[0], N])
        else:
            x = tl.broadcast_to(x, [x.shape[0], x.shape[1], N])
    return x


@triton.jit
def kept(tile, INTERPRET: tl.constexpr):
    """The tile itself, in registers up to here: the compiler would store what a product takes to
    shared memory as soon as it is loaded, and so wait for it there."""
    if not INTERPRET:
        kind: tl.constexpr = tile.dtype
        if kind.primitive_bitwidth == 64:
            raw = tl.inline_asm_elementwise(
                "mov.b64 $0, $1;", "=l,l", [tile], dtype=tl.uint64, is_pure=False, pack=1
            )
        elif kind.primitive_bitwidth == 32:
            raw = tl.inline_asm_elementwise(
                "mov.b32 $0, $1;", "=r,r", [tile], dtype=tl.uint32, is_pure=False, pack=1
            )
        elif kind.primitive_bitwidth == 16:
            raw = tile.to(tl.int16, bitcast=True)
            raw = tl.inline_asm_elementwise(
                "mov.b32 $0, $1;", "=r,r", [raw], dtype=tl.int16, is_pure=False, pack=2
            )
        else:
            raw = tile.to(tl.int8, bitcast=True)
            raw = tl.inline_asm_elementwise(
                "mov.b32 $0, $1;", "=r,r", [raw], dtype=tl.int8, is_pure=False, pack=4
            )
        tile = raw.to(kind, bitcast=True)
    return tile


@triton.jit
def chain_dot(a, b, acc, INTERPRET: tl.constexpr):
    """``acc + a @ b``. The interpreter's product chooses its order by the shape; in fp64 that does
    not show."""
    if INTERPRET:
        acc += tl.dot(a.to(tl.float64), b.to(tl.float64), out_dtype=tl.float64).to(tl.float32)
    else:
        acc = tl.dot(a, b, acc)
    return acc


@triton.jit
def steps_dot(a, b, acc, W: tl.constexpr, INTERPRET: tl.constexpr):
    """``acc + a @ b``, ``W`` columns of ``a`` after the other: on a device the same chain, in the
    interpreter a product of each."""
    if INTERPRET:
        step = tl.arange(0, a.shape[-1]) // W
        for one in tl.static_range(a.shape[-1] // W):
            mine = step == one
            if len(a.shape) == 2:
                left = tl.where(mine[None, :], a, 0.0)
                right = tl.where(mine[:, None], b, 0.0)
            else:
                left = tl.where(mine[None, None, :], a, 0.0)
                right = tl.where(mine[None, :, None], b, 0.0)
            acc = chain_dot(left, right, acc, INTERPRET)
    else:
        acc = chain_dot(a, b, acc, INTERPRET)
    return acc


@triton.jit
def long(number):
    """As i64; an argument that is 1 is a constant and has no type of its own."""
    return tl.zeros([], tl.int64) + number


@triton.jit
def zeros(ROWS: tl.constexpr, N: tl.constexpr, G: tl.constexpr, APART: tl.constexpr = False):
    """``APART`` keeps the axis of one group."""
    return tl.zeros([ROWS, N] if G == 1 and not APART else [G, ROWS, N], tl.float32)


@triton.jit
def folded(sums, G: tl.constexpr, APART: tl.constexpr = False):
    """[G, A, B] to [A, B]: halves are added until one is left, so that the order is this one in
    any layout. ``APART`` says that one group has its axis too.

    What is split comes to lie in one thread: groups change places once, not once for each half."""
    if G == 1:
        if APART:
            sums = tl.reshape(sums, [sums.shape[1], sums.shape[2]])
    else:
        ROWS: tl.constexpr = sums.shape[1]
        N: tl.constexpr = sums.shape[2]
        groups = tl.permute(sums, [1, 2, 0])
        if G == 2:
            low, high = tl.split(groups)
            sums = low + high
        elif G == 4:
            even, odd = tl.split(tl.reshape(groups, [ROWS, N, 2, 2]))
            sums = _pair_sum(even) + _pair_sum(odd)
        else:
            tl.static_assert(G == 8)
            even, odd = tl.split(tl.reshape(groups, [ROWS, N, 2, 2, 2]))
            even_low, even_high = tl.split(even)
            odd_low, odd_high = tl.split(odd)
            sums = (_pair_sum(even_low) + _pair_sum(even_high)) + (
                _pair_sum(odd_low) + _pair_sum(odd_high)
            )
    return sums


@triton.jit
def _pair_sum(pairs):
    low, high = tl.split(pairs)
    return low + high


@triton.jit
def group_columns(G: tl.constexpr, W: tl.constexpr, APART: tl.constexpr = 1):
    """Columns of a step: [W], or [G, W], of each ``APART``-th group."""
    columns = tl.arange(0, W)
    if G > 1:
        columns = tl.arange(0, G)[:, None] * (W * APART) + columns[None, :]
    return columns


@triton.jit
def across_rows(k, G: tl.constexpr):
    """Columns along the last axis of a weight tile."""
    return k[None, :] if G == 1 else k[:, None, :]


@triton.jit
def down_columns(k, G: tl.constexpr):
    """Columns along the first axis, or the second of three, of an activation tile."""
    return k[:, None] if G == 1 else k[:, :, None]


@triton.jit
def as_rows(values, G: tl.constexpr):
    return values[:, None] if G == 1 else values[None, :, None]


@triton.jit
def as_columns(values, G: tl.constexpr):
    return values[None, :] if G == 1 else values[None, None, :]
