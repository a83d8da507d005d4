"""Attention of a chunk against float64, at the edges of tiles and pages."""

from __future__ import annotations

import math

import pytest
import torch
from chunk_cases import check, chunk, run
from harness import Operands
from paging import make_case

from ninfer_core.ops.errors import OpError
from ninfer_ops_triton import attention_prefill
from ninfer_ops_triton.attention_prefill import paged_prefill_attention

FORMATS = pytest.mark.parametrize("kind", ["bf16", "int8", "fp8"])


@pytest.mark.parametrize(
    ("start", "count"), [(0, 17), (0, 64), (1, 63), (64, 65), (100, 33), (127, 18), (0, 130)]
)
def test_causal_from_its_start(operands, start, count):
    check(*chunk(operands, "bf16", start, count, heads=4))


@pytest.mark.parametrize("count", [1, 15, 16])
def test_few_rows_split_the_tokens(operands, count):
    check(*chunk(operands, "bf16", 70, count))


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("heads", "kv"), [(6, 1), (4, 2), (10, 2)])
def test_tiles_of_both_sizes(operands, monkeypatch, heads, kv, large):
    enough = 1 if large else 10**6
    monkeypatch.setattr(attention_prefill, "multiprocessors", lambda: enough)
    check(*chunk(operands, "bf16", 30, 40, heads=heads, kv=kv))


@FORMATS
def test_padding_rows_are_zero(operands, kind):
    case, queries = chunk(operands, kind, 60, 50, live=20)
    result = check(case, queries)
    assert not result[20:].any()


def test_fp32(operands):
    check(*chunk(operands, "fp32", 40, 30, dtype=torch.float32))


@FORMATS
def test_a_broken_value_does_not_reach_the_rows_before_it(operands, kind):
    case, queries = chunk(operands, kind, 20, 24)
    healthy = run(case, queries)
    token = int(case.slots[10])
    cache = case.pool.cache
    broken = cache.values if cache.value_scales is None else cache.value_scales
    broken.flatten(0, 1)[token, 0, 0] = math.nan
    result = run(case, queries)
    assert torch.equal(result[:10], healthy[:10])
    assert result[10:].isnan().any(-1).all()


def test_other_sequences_and_shapes_are_refused(operands):
    case, queries = chunk(operands, "bf16", 0, 20)
    cache, rows = case.pool.cache, case.rows
    with pytest.raises(OpError, match="one sequence of 10 rows"):
        paged_prefill_attention(queries[:10], cache, rows, 1.0)
    two = make_case(operands, "bf16", [0, 0], [1, 1], 10)
    with pytest.raises(OpError, match="there are 2 of width 10"):
        paged_prefill_attention(queries[:10], cache, two.rows, 1.0)
    with pytest.raises(OpError, match="q is"):
        paged_prefill_attention(queries[..., :128], cache, rows, 1.0)


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "kv"), [(8, 2), (16, 4), (24, 4), (16, 2), (32, 2)])
@pytest.mark.parametrize(("start", "count"), [(0, 2048), (5000, 1111), (777, 300)])
def test_long_chunks(heads, kv, start, count):
    operands = Operands(7, "cuda")
    check(*chunk(operands, "bf16", start, count, heads=heads, kv=kv))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("count", [200, 2500])
def test_long_chunks_of_other_formats(kind, count):
    check(*chunk(Operands(8, "cuda"), kind, 3000, count, heads=16, kv=4))
