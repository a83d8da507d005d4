"""Attention of blocks over pages against dense fp64 attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ninfer_core.ops.errors import OpError

HEADS, KV, SIZE = 6, 2, 64
SCALE = SIZE**-0.5
TABLES = [[2, 3, 4], [6, 0, 5], [1, 7, 8]]


def dense(q, cache, pages, seen):
    """One query [nh, D] over the tokens ``seen``, in fp64, token by token."""
    keys = torch.stack([cache.keys[pages[t // 64], t % 64] for t in seen]).double()
    values = torch.stack([cache.values[pages[t // 64], t % 64] for t in seen]).double()
    out = []
    for head in range(HEADS):
        group = head // (HEADS // KV)
        weights = torch.softmax(SCALE * (keys[:, group] @ q[head].double()), dim=0)
        out.append(weights @ values[:, group])
    return torch.stack(out)


def seen_by(start, live, row, causal, window, first):
    """The definition, token by token."""
    place = start + row
    return [
        token
        for token in range(first, start + live)
        if (token <= place or not causal) and (window is None or place - token < window)
    ]


def poison_unseen(cache, tables, starts, live, window, first):
    keep = torch.zeros(cache.keys.shape[0], 64, dtype=torch.bool)
    for pages, start, rows in zip(tables, starts, live, strict=True):
        low = first if window is None else max(first, start + 1 - window)
        for token in range(low, start + rows):
            keep[pages[token // 64], token % 64] = True
    for pool in (cache.keys, cache.values):
        pool[~keep] = float("nan")


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("window", [None, 8, 70])
@pytest.mark.parametrize("causal", [True, False])
def test_rows_see_what_the_pattern_says(ops, operands, paged, causal, window, first):
    starts, live, width = [121, 3, 64], [8, 5, 0], 8
    cache, q = operands.cache(9, KV, SIZE), operands.normal(3 * width, HEADS, SIZE)
    poison_unseen(cache, TABLES, starts, live, window, first)
    rows = replace(paged(TABLES, starts, live, width), first=first)
    result = ops.block_attention(q, cache, rows, SCALE, causal=causal, window=window)
    for sequence in range(3):
        for row in range(width):
            place = sequence * width + row
            if row >= live[sequence]:
                assert not result[place].any()
                continue
            seen = seen_by(starts[sequence], live[sequence], row, causal, window, first)
            expected = dense(q[place], cache, TABLES[sequence], seen)
            torch.testing.assert_close(result[place].double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("causal", [True, False])
def test_a_sequence_has_the_same_bits_in_any_batch(ops, operands, paged, causal, window):
    starts, live, width = [121, 3, 64], [8, 5, 2], 8
    cache, q = operands.cache(9, KV, SIZE), operands.normal(3 * width, HEADS, SIZE)
    rows = paged(TABLES, starts, live, width)
    together = ops.block_attention(q, cache, rows, SCALE, causal=causal, window=window)
    for i in range(3):
        alone = paged(TABLES[i : i + 1], starts[i : i + 1], live[i : i + 1], width)
        mine = slice(i * width, (i + 1) * width)
        result = ops.block_attention(q[mine], cache, alone, SCALE, causal=causal, window=window)
        assert torch.equal(result, together[mine])


def test_a_causal_block_without_a_window_is_decode_attention(ops, operands, paged):
    cache, q = operands.cache(9, KV, SIZE), operands.normal(8, HEADS, SIZE)
    rows = paged(TABLES[:1], [60], [8], 8)
    result = ops.block_attention(q, cache, rows, SCALE, causal=True)
    decode = ops.paged_decode_attention(q, cache, rows, SCALE)
    torch.testing.assert_close(result, decode, rtol=0, atol=2e-6)


def test_a_broken_row_does_not_reach_those_before_it_in_a_causal_block(ops, operands, paged):
    cache, q = operands.cache(9, KV, SIZE), operands.normal(4, HEADS, SIZE)
    rows = paged(TABLES[:1], [62], [4], 4)
    healthy = ops.block_attention(q, cache, rows, SCALE, causal=True)
    cache.values[3, 0] = float("nan")
    result = ops.block_attention(q, cache, rows, SCALE, causal=True)
    assert torch.equal(result[:2], healthy[:2])
    assert result[2:].isnan().all()
    assert ops.block_attention(q, cache, rows, SCALE, causal=False).isnan().all()


def test_a_window_narrower_than_the_block_is_refused(ops, operands, paged):
    cache, q = operands.cache(9, KV, SIZE), operands.normal(8, HEADS, SIZE)
    with pytest.raises(OpError, match="window is 7; it must hold the 8 rows"):
        ops.block_attention(q, cache, paged(TABLES[:1], [9], [8], 8), SCALE, causal=True, window=7)
