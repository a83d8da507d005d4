"""Rotary positions, and how a token's keys and values are encoded in a page.

A plain format (``fp32``, ``bf16``) holds elements. ``int8`` holds codes with a scale for each 64
elements, ``fp8`` E4M3 codes with one scale a head. E4M3 is read and written by integer operations:
they are exact, and devices before compute capability 8.9 have no others.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.lib import await_inputs, narrow, release_dependents, wide

ROUNDING = tl.constexpr(12582912.0)
"""1.5 * 2^23: added to a small fp32 number and taken away again, it rounds to an integer, to even
at a half."""


@triton.jit
def norm_rope(rows, valid, angles, cos, sin, scale, eps, D: tl.constexpr, R: tl.constexpr):
    """RMS norm over D, then a turn of the pairs (j, j + R/2), of the rows that start at the
    pointers ``rows`` [N]: fp32 [N, D], zero where not ``valid``. Row i turns by row ``angles[i]``
    of ``cos`` and ``sin`` [., R/2]."""
    half: tl.constexpr = R // 2
    d = tl.arange(0, D)
    other = tl.where(d < half, d + half, d - half)
    turned = valid[:, None] & (d < R)[None, :]
    x = wide(tl.load(rows[:, None] + d[None, :], mask=valid[:, None], other=0.0))
    y = wide(tl.load(rows[:, None] + other[None, :], mask=turned, other=0.0))
    inverse = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
    x = x * inverse * tl.load(scale + d)[None, :]
    y = y * inverse * tl.load(scale + other, mask=d < R, other=0.0)[None, :]
    angle = angles[:, None] * half + (d % half)[None, :]
    c = tl.load(cos + angle, mask=turned, other=1.0)
    s = tl.load(sin + angle, mask=turned, other=0.0)
    return tl.fma(y, tl.where((d < half)[None, :], -s, s), x * c)


@triton.jit
def encode(
    x, N: tl.constexpr, D: tl.constexpr, FORMAT: tl.constexpr, PLAIN: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """fp32 [N, D] as it is stored: codes [N, D] and scales f32[N, G] (for plain formats anything).

    ``scale = amax / 127`` or ``amax / 448`` of a group, codes are ``x / scale`` rounded half to
    even. A group of zeros has scale 0; one that holds NaN or an infinity has scale NaN and codes 0.
    """
    if FORMAT == "int8" or FORMAT == "fp8":
        G: tl.constexpr = D // 64 if FORMAT == "int8" else 1
        TOP: tl.constexpr = 127.0 if FORMAT == "int8" else 448.0
        groups = tl.reshape(x, (N, G, D // G))
        broken = tl.max(tl.where((groups - groups) != 0.0, 1, 0), axis=2) > 0
        amax = tl.max(tl.abs(groups), axis=2)
        scale = tl.where(broken, float("nan"), tl.div_rn(amax, tl.full((N, G), TOP, tl.float32)))
        usable = scale > 0.0
        divisor = tl.where(usable, scale, 1.0)[:, :, None]
        y = tl.div_rn(groups, tl.broadcast_to(divisor, (N, G, D // G)))
        y = tl.where(usable[:, :, None], tl.minimum(tl.maximum(y, -TOP), TOP), 0.0)
        y = tl.reshape(y, (N, D))
        codes = ((y + ROUNDING) - ROUNDING).to(tl.int8) if FORMAT == "int8" else e4m3(y)
    else:
        codes = narrow(x, PLAIN, INTERPRET)
        scale = codes
    return codes, scale


@triton.jit
def e4m3(y):
    """fp32 within +-448 as E4M3 codes u8, to nearest even."""
    bits = y.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    small = ((tl.abs(y) * 512.0 + ROUNDING) - ROUNDING).to(tl.int32)
    code = tl.where(tl.abs(y) < 0.015625, small, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def e4m3_value(codes):
    """E4M3 codes u8 as fp32 numbers 256 times smaller: their bits, moved, are those of fp16."""
    wider = codes.to(tl.int16)
    bits = ((wider & 0x80) << 8) | ((wider & 0x7F) << 7)
    return bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def decode(
    codes, scales, N: tl.constexpr, D: tl.constexpr, FORMAT: tl.constexpr, OPERAND: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """What :func:`encode` made as operand of a product: ``code * scale``, OPERAND [N, D]."""
    if FORMAT == "int8":
        groups = tl.reshape(codes.to(tl.float32), (N, D // 64, 64)) * scales[:, :, None]
        x = narrow(tl.reshape(groups, (N, D)), OPERAND, INTERPRET)
    elif FORMAT == "fp8":
        rows = tl.reshape(e4m3_value(codes), (N, 1, D)) * (scales * 256.0)[:, :, None]
        x = narrow(tl.reshape(rows, (N, D)), OPERAND, INTERPRET)
    elif codes.dtype == OPERAND:
        x = codes
    else:
        x = narrow(wide(codes), OPERAND, INTERPRET)
    return x


@triton.jit
def load_tokens(
    pool, scales, tokens, mask, head, KV: tl.constexpr, D: tl.constexpr, FORMAT: tl.constexpr
):
    """Codes [N, D] and scales [N, G] of one head of the tokens at the places ``tokens`` i64[N]."""
    d = tl.arange(0, D)
    codes = tl.load(
        pool + (tokens * (KV * D) + head * D)[:, None] + d[None, :], mask=mask[:, None], other=0.0
    )
    if FORMAT == "int8" or FORMAT == "fp8":
        G: tl.constexpr = D // 64 if FORMAT == "int8" else 1
        g = tl.arange(0, G)
        places = scales + (tokens * (KV * G) + head * G)[:, None] + g[None, :]
        made = tl.load(places, mask=mask[:, None], other=0.0)
    else:
        made = codes
    return codes, made


@triton.jit
def store_tokens(
    pool, scales, codes, made, tokens, mask, head, KV: tl.constexpr, D: tl.constexpr,
    FORMAT: tl.constexpr,
):  # fmt: skip
    """Write one head of tokens as :func:`encode` made them to the places ``tokens``."""
    d = tl.arange(0, D)
    places = pool + (tokens * (KV * D) + head * D)[:, None] + d[None, :]
    tl.store(places, codes, mask=mask[:, None])
    if FORMAT == "int8" or FORMAT == "fp8":
        G: tl.constexpr = D // 64 if FORMAT == "int8" else 1
        g = tl.arange(0, G)
        places = scales + (tokens * (KV * G) + head * G)[:, None] + g[None, :]
        tl.store(places, made, mask=mask[:, None])


@triton.jit
def norm_rope_store(
    q, k, v, q_scale, k_scale, cos, sin, keys, values, key_scales, value_scales, slots, out,
    eps, rows, q_row, q_head, k_row, k_head, v_row, v_head,
    HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK: tl.constexpr, FORMAT: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """TOKENS tokens of one key/value head and its query heads: queries to ``out`` [T, HEADS, D],
    keys and values to their slots. BLOCK holds TOKENS times the heads of a group."""
    release_dependents(PDL)
    await_inputs(PDL)
    GROUP: tl.constexpr = HEADS // KV
    first = tl.program_id(0) * TOKENS
    head = tl.program_id(1)
    d = tl.arange(0, D)

    r = tl.arange(0, BLOCK)
    t, h = (first + r // GROUP).to(tl.int64), head * GROUP + r % GROUP
    live = (r < TOKENS * GROUP) & (t < rows)
    turned = norm_rope(q + t * q_row + h * q_head, live, t, cos, sin, q_scale, eps, D, R)
    places = out + (t * (HEADS * D) + h * D)[:, None] + d[None, :]
    tl.store(places, narrow(turned, out.dtype.element_ty, INTERPRET), mask=live[:, None])

    t = (first + tl.arange(0, TOKENS)).to(tl.int64)
    slot = tl.load(slots + t, mask=t < rows, other=-1)
    live = slot >= 0
    turned = norm_rope(k + t * k_row + head * k_head, live, t, cos, sin, k_scale, eps, D, R)
    codes, made = encode(turned, TOKENS, D, FORMAT, keys.dtype.element_ty, INTERPRET)
    store_tokens(keys, key_scales, codes, made, slot, live, head, KV, D, FORMAT)
    raw = v + (t * v_row + head * v_head)[:, None] + d[None, :]
    raw = wide(tl.load(raw, mask=live[:, None], other=0.0))
    codes, made = encode(raw, TOKENS, D, FORMAT, values.dtype.element_ty, INTERPRET)
    store_tokens(values, value_scales, codes, made, slot, live, head, KV, D, FORMAT)


@triton.jit
def angle_tables(
    positions, frequencies, axes, cos, sin, rows, stride, HALF: tl.constexpr, PAD: tl.constexpr,
    TOKENS: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release_dependents(PDL)
    await_inputs(PDL)
    t = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    store_angles(positions, frequencies, axes, cos, sin, t, rows, stride, HALF, PAD)


@triton.jit
def store_angles(
    positions, frequencies, axes, cos, sin, t, rows, stride, HALF: tl.constexpr, PAD: tl.constexpr
):
    """Cosines and sines of the rows ``t``."""
    j = tl.arange(0, PAD)
    inside = (t < rows)[:, None] & (j < HALF)[None, :]
    axis = tl.load(axes + j, mask=j < HALF, other=0)
    position = tl.load(positions + axis[None, :] * stride + t[:, None], mask=inside, other=0)
    frequency = tl.load(frequencies + j, mask=j < HALF, other=0.0)
    angle = position.to(tl.float32) * frequency[None, :]
    places = t[:, None] * HALF + j[None, :]
    tl.store(cos + places, tl.cos(angle), mask=inside)
    tl.store(sin + places, tl.sin(angle), mask=inside)


@triton.jit
def token_slots(
    block_tables, table_rows, starts, live, slots, count, width, table_stride,
    BLOCK: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release_dependents(PDL)
    await_inputs(PDL)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    store_slots(block_tables, table_rows, starts, live, slots, t, count, width, table_stride)


@triton.jit
def place_tokens(
    block_tables, table_rows, starts, live, slots, positions, frequencies, axes, cos, sin,
    count, width, table_stride, stride, HALF: tl.constexpr, PAD: tl.constexpr,
    TOKENS: tl.constexpr, INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """:func:`token_slots` and :func:`angle_tables` of the same tokens."""
    release_dependents(PDL)
    await_inputs(PDL)
    t = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    store_slots(block_tables, table_rows, starts, live, slots, t, count, width, table_stride)
    store_angles(positions, frequencies, axes, cos, sin, t, count, stride, HALF, PAD)


@triton.jit
def store_slots(block_tables, table_rows, starts, live, slots, t, count, width, table_stride):
    """Physical places of the rows ``t``."""
    inside = t < count
    b, w = t // width, t % width
    token = tl.load(starts + b, mask=inside, other=0) + w
    alive = inside & (w < tl.load(live + b, mask=inside, other=0))
    table = block_tables + tl.load(table_rows + b, mask=inside, other=0).to(tl.int64) * table_stride
    page = tl.load(table + token // 64, mask=alive, other=0).to(tl.int64)
    tl.store(slots + t, tl.where(alive, page * 64 + token % 64, -1), mask=inside)
