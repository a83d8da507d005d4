"""Paged attention against dense fp64 attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

HEADS, KV, SIZE = 6, 2, 256
SCALE = SIZE**-0.5
EDGES = [1, 2, 63, 64, 65, 127, 128, 129, 150]


def dense(q, cache, pages, length):
    """One query [nh, D] over the first ``length`` tokens, in fp64."""
    keys = torch.cat([cache.keys[page] for page in pages])[:length].double()
    values = torch.cat([cache.values[page] for page in pages])[:length].double()
    out = []
    for head in range(HEADS):
        group = head // (HEADS // KV)
        weights = torch.softmax(SCALE * (keys[:, group] @ q[head].double()), dim=0)
        out.append(weights @ values[:, group])
    return torch.stack(out)


def poison_beyond(cache, pages, length):
    """NaN wherever the first ``length`` tokens of ``pages`` do not lie."""
    keep = torch.zeros(cache.keys.shape[0], 64, dtype=torch.bool)
    for token in range(length):
        keep[pages[token // 64], token % 64] = True
    for pool in (cache.keys, cache.values):
        pool[~keep] = float("nan")


@pytest.mark.parametrize("pages", [[2, 3, 4], [4, 0, 3]], ids=["run", "scattered"])
@pytest.mark.parametrize("length", EDGES)
def test_decode_reads_its_own_tokens_alone(ops, operands, paged, pages, length):
    cache, q = operands.cache(6, KV, SIZE), operands.normal(1, HEADS, SIZE)
    poison_beyond(cache, pages, length)
    rows = paged([pages], starts=[length - 1], live=[1], width=1)
    result = ops.paged_decode_attention(q, cache, rows, SCALE)
    torch.testing.assert_close(
        result[0].double(), dense(q[0], cache, pages, length), rtol=0, atol=2e-6
    )


def test_scattered_pages_have_the_bits_of_a_run(ops, operands, paged):
    cache, q = operands.cache(6, KV, SIZE), operands.normal(1, HEADS, SIZE)
    rows = paged([[0, 1, 2]], starts=[140], live=[1], width=1)
    expected = ops.paged_decode_attention(q, cache, rows, SCALE)
    order = [5, 2, 4]
    cache.keys[order], cache.values[order] = cache.keys[:3].clone(), cache.values[:3].clone()
    rows = paged([order], starts=[140], live=[1], width=1)
    assert torch.equal(ops.paged_decode_attention(q, cache, rows, SCALE), expected)


@pytest.mark.parametrize("start", [0, 60, 62, 63, 64, 126])
def test_verify_rows_have_the_bits_of_decode(ops, operands, paged, start):
    pages = [[1, 4, 0], [5, 2, 3]]
    cache, q = operands.cache(6, KV, SIZE), operands.normal(8, HEADS, SIZE)
    rows = paged(pages, starts=[start, 31], live=[4, 2], width=4)
    result = ops.paged_decode_attention(q, cache, rows, SCALE)
    for sequence, (first, live) in enumerate([(start, 4), (31, 2)]):
        for row in range(live):
            alone = paged([pages[sequence]], starts=[first + row], live=[1], width=1)
            place = sequence * 4 + row
            single = ops.paged_decode_attention(q[place : place + 1], cache, alone, SCALE)
            assert torch.equal(result[place], single[0])
    assert not result[6:].any()


@pytest.mark.parametrize(
    ("start", "count"), [(0, 1), (0, 64), (0, 150), (1, 63), (64, 65), (100, 50)]
)
def test_prefill_is_causal_from_its_start(ops, operands, paged, start, count):
    pages = [3, 1, 5]
    cache, q = operands.cache(6, KV, SIZE), operands.normal(count, HEADS, SIZE)
    poison_beyond(cache, pages, start + count)
    rows = paged([pages], starts=[start], live=[count], width=count)
    result = ops.paged_prefill_attention(q, cache, rows, SCALE)
    for row in {0, count // 2, count - 1}:
        expected = dense(q[row], cache, pages, start + row + 1)
        torch.testing.assert_close(result[row].double(), expected, rtol=0, atol=2e-6)


def test_prefill_padding_is_zero(ops, operands, paged):
    cache, q = operands.cache(6, KV, SIZE), operands.normal(8, HEADS, SIZE)
    rows = paged([[3, 1]], starts=[0], live=[5], width=8)
    result = ops.paged_prefill_attention(q, cache, rows, SCALE)
    torch.testing.assert_close(result[4].double(), dense(q[4], cache, [3, 1], 5), rtol=0, atol=2e-6)
    assert not result[5:].any()


def test_fp64_operands_are_computed_in_fp64(ops, operands, paged):
    cache = operands.cache(6, KV, SIZE, torch.float64)
    q = operands.normal(1, HEADS, SIZE, dtype=torch.float64)
    rows = paged([[4, 0, 3]], starts=[149], live=[1], width=1)
    result = ops.paged_decode_attention(q, cache, rows, SCALE)
    torch.testing.assert_close(result[0], dense(q[0], cache, [4, 0, 3], 150), rtol=0, atol=1e-14)


@pytest.mark.parametrize("pages", [[2, 3, 4], [4, 0, 3]], ids=["run", "scattered"])
@pytest.mark.parametrize("length", [2, 64, 65])
def test_tokens_before_the_first_are_not_seen(ops, operands, paged, pages, length):
    cache, q = operands.cache(6, KV, SIZE), operands.normal(1, HEADS, SIZE)
    rows = replace(paged([pages], starts=[length - 1], live=[1], width=1), first=1)
    result = ops.paged_decode_attention(q, cache, rows, SCALE)
    keys = torch.cat([cache.keys[page] for page in pages])[1:length].double()
    values = torch.cat([cache.values[page] for page in pages])[1:length].double()
    grouped = q[0].double().view(KV, -1, SIZE)
    weights = torch.softmax(SCALE * torch.einsum("kgd,tkd->kgt", grouped, keys), dim=-1)
    expected = torch.einsum("kgt,tkd->kgd", weights, values).reshape(HEADS, SIZE)
    torch.testing.assert_close(result[0].double(), expected, rtol=0, atol=2e-6)
