"""A prompt chunk over pages, and its attention held against float64."""

from __future__ import annotations

import torch
from harness import GuardedAllocations, assert_close_to_oracle, relative_error
from paging import SIZE, make_case, on_cpu, wide

from ninfer_core.ops.reference import OPS as REFERENCE
from ninfer_ops_triton.attention_prefill import paged_prefill_attention
from ninfer_ops_triton.kv import qk_norm_rope_store


def chunk(operands, kind, start, count, live=None, **geometry):
    """A chunk that has been stored, and its queries."""
    case = make_case(operands, kind, [start], [count if live is None else live], count, **geometry)
    q, _, k, v = case.split()
    scales, angles = (case.mixer.q_scale, case.mixer.k_scale), (case.cos, case.sin)
    rest = (*scales, case.mixer.eps, *angles, case.pool.cache, case.slots)
    return case, qk_norm_rope_store(q, k, v, *rest)


def run(case, queries):
    with GuardedAllocations():
        return paged_prefill_attention(queries, case.pool.cache, case.rows, SIZE**-0.5).clone()


def check(case, queries):
    before = case.pool.bytes()
    result = run(case, queries)
    assert all(map(torch.equal, before, case.pool.bytes()))
    oracle = REFERENCE.paged_prefill_attention(
        queries.cpu().double(), wide(case.pool.cache), on_cpu(case.rows), SIZE**-0.5
    )
    if result.dtype == torch.float32:
        assert relative_error(result.cpu(), oracle) < 1e-6
    else:
        share = 2**-9 if case.kind == "bf16" else 2**-8
        assert_close_to_oracle(result, oracle, oracle.bfloat16() * (1 + share), ulps=8)
    return result
