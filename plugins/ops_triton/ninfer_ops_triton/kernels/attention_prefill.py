"""Attention of a prompt chunk over the pages of its sequence."""

from __future__ import annotations

import triton
import triton.language as tl

from ninfer_ops_triton.kernels.attention_decode import absorb, share_of, spoilt_tokens
from ninfer_ops_triton.kernels.kv_store import decode, load_tokens
from ninfer_ops_triton.kernels.lib import await_inputs, narrow, release_dependents


@triton.jit(do_not_specialize=["count"])
def attend_chunk(
    q, keys, values, key_scales, value_scales, block_tables, table_rows, starts, live, out,
    partial_acc, partial_top, partial_total, factor, count, table_stride,
    HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, FORMAT: tl.constexpr, STAGES: tl.constexpr, LEAST: tl.constexpr,
    INTERPRET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (key/value head, tile of rows, split), the tiles that see most first. A tile is as
    many rows as fit with all query heads of the group into BLOCK_M, so that they share what is
    loaded.

    LEAST > 0: the tokens of the chunk's last row are cut into one even split for each program of
    the third dimension, of LEAST tokens or more; those that a tile does not see leave at once. What
    they sum goes to the partial results, [row, head, split] as :func:`combine_partials` reads them,
    which writes ``out``. LEAST 0: there is one split, and ``out`` is written here.

    As in a decode split, values are 0 from the first spoilt token on that some row does not see.
    """
    if LEAST == 0:
        release_dependents(PDL)
    await_inputs(PDL)
    if LEAST > 0:
        # Not before: the next kernel reads starts and live without a wait.
        release_dependents(PDL)
    GROUP: tl.constexpr = HEADS // KV
    ROWS: tl.constexpr = BLOCK_M // GROUP
    NEW: tl.constexpr = 16
    head = tl.program_id(0)
    first_row = (tl.num_programs(1) - 1 - tl.program_id(1)) * ROWS
    begin, alive = tl.load(starts), tl.load(live)
    r, d = tl.arange(0, BLOCK_M), tl.arange(0, D)
    w, h = first_row + r // GROUP, head * GROUP + r % GROUP
    valid = (r < ROWS * GROUP) & (w < count)
    places = (w.to(tl.int64) * (HEADS * D) + h * D)[:, None] + d[None, :]
    begins = 0
    if LEAST > 0:
        share = share_of(begin + alive, tl.num_programs(2), LEAST)
        begins = tl.program_id(2) * share
        if (first_row >= alive) | (begins >= begin + tl.minimum(first_row + ROWS, alive)):
            return
    else:
        if first_row >= alive:
            zeros = tl.zeros((BLOCK_M, D), out.dtype.element_ty)
            tl.store(out + places, zeros, mask=valid[:, None])
            return
    table = block_tables + tl.load(table_rows).to(tl.int64) * table_stride
    lengths = begin + w + 1
    until = begin + tl.minimum(first_row + ROWS, alive)
    earliest_new = begin + first_row + 1
    if LEAST > 0:
        until = tl.minimum(until, begins + share)
        earliest_new = tl.maximum(earliest_new, begins)
    x = tl.load(q + places, mask=(valid & (w < alive))[:, None], other=0.0)

    clean = until
    for new in tl.range(earliest_new, until, NEW, num_stages=1):
        tokens = new + tl.arange(0, NEW)
        fresh = tokens < until
        page = tl.load(table + tokens // 64, mask=fresh, other=0).to(tl.int64)
        v, vs = load_tokens(
            values, value_scales, page * 64 + tokens % 64, fresh, head, KV, D, FORMAT
        )
        spoilt = tl.where(fresh & spoilt_tokens(v, vs, FORMAT), tokens, until)
        clean = tl.minimum(clean, tl.min(spoilt, axis=0))

    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    offsets = tl.arange(0, BLOCK_N)
    first, last = begins // BLOCK_N, tl.cdiv(until, BLOCK_N)
    page = tl.load(table + begins // 64)
    for block in tl.range(first, last, num_stages=STAGES):
        following = tl.load(table + tl.minimum(block + 1, last - 1) * BLOCK_N // 64)
        tokens = block * BLOCK_N + offsets
        rows = page.to(tl.int64) * 64 + (block * BLOCK_N) % 64 + offsets
        k, ks = load_tokens(keys, key_scales, rows, tokens < until, head, KV, D, FORMAT)
        v, vs = load_tokens(values, value_scales, rows, tokens < clean, head, KV, D, FORMAT)
        top, total, acc = absorb(
            x,
            decode(k, ks, BLOCK_N, D, FORMAT, x.dtype, INTERPRET),
            decode(v, vs, BLOCK_N, D, FORMAT, x.dtype, INTERPRET),
            tokens[None, :] < lengths[:, None], top, total, acc, factor, INTERPRET,
        )  # fmt: skip
        page = following

    total = tl.where(lengths > clean, tl.where(clean < until, float("nan"), total), total)
    if LEAST > 0:
        made = valid & (w < alive) & (begins < lengths)
        part = (w.to(tl.int64) * HEADS + h) * tl.num_programs(2) + tl.program_id(2)
        tl.store(partial_top + part, top, mask=made)
        tl.store(partial_total + part, total, mask=made)
        tl.store(partial_acc + (part * D)[:, None] + d[None, :], acc, mask=made[:, None])
    else:
        result = tl.where((w < alive)[:, None], acc / total[:, None], 0.0)
        tl.store(out + places, narrow(result, out.dtype.element_ty, INTERPRET), mask=valid[:, None])
