"""The fused attention of the decode route against float64, and what may not change its bits."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from harness import GuardedAllocations, Operands, assert_sequences_close
from paging import SIZE, assert_stored, make_case, on_cpu, wide
from torch_attention import torch_attention

from ninfer_core.ops.contracts.values import KvCache
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference.attention import paged_decode_attention as oracle_attention
from ninfer_ops_triton import attention
from ninfer_ops_triton.attention import attention_mix_decode, paged_decode_attention

FORMATS = pytest.mark.parametrize("kind", ["bf16", "int8", "fp8"])


def run(case):
    with GuardedAllocations():
        return attention_mix_decode(*case.fused()).clone()


def check(case):
    """The result against the oracle; what was stored; guards."""
    before = case.pool.bytes()
    result = run(case)
    case.pool.check()
    assert_stored(case, before)
    judge(case, result)
    return result


def judge(case, result):
    starts, live = case.rows.starts, case.rows.live
    assert_sequences_close(result, case.oracle(), case.baseline(), starts, live)


@pytest.mark.parametrize("start", [0, 1, 31, 32, 62, 63, 64, 127, 128, 200])
def test_one_row_at_block_page_and_split_edges(operands, start):
    check(make_case(operands, "bf16", [start], [1], 1, heads=2))


@pytest.mark.parametrize("start", [0, 63, 130])
def test_one_row_in_fp32(operands, start):
    check(make_case(operands, "fp32", [start], [1], 1, heads=2, dtype=torch.float32))


@pytest.mark.parametrize(
    ("kind", "heads", "kv"), [("bf16", 6, 1), ("bf16", 8, 2), ("int8", 4, 2), ("fp8", 4, 2)]
)
def test_verify_rows_of_unlike_sequences(operands, kind, heads, kv):
    case = make_case(operands, kind, [126, 0, 62], [3, 0, 2], 3, heads=heads, kv=kv)
    result = check(case)
    assert not result[3:6].any()
    assert not result[8:].any()


@pytest.mark.parametrize(("heads", "width"), [(16, 2), (5, 4), (1, 16), (12, 1)])
def test_other_groups_and_widths(operands, heads, width):
    check(make_case(operands, "bf16", [61], [width], width, heads=heads))


@pytest.fixture
def low_tiers(monkeypatch):
    """Split lengths that double beyond 128 and 256 tokens instead of beyond 4096."""
    monkeypatch.setattr(attention, "FULL_BITS", 7)
    monkeypatch.setattr(attention, "MOST_SPLITS", 2)


def assert_rows_stand_alone(case):
    """Each live row has the bits of its one-row call, and so has what that call stores."""
    result = run(case)
    stored = case.pool.bytes()
    for sequence, live in enumerate(case.rows.live.tolist()):
        for row in range(live):
            single = run(case.one(sequence, row))
            assert torch.equal(single[0], result[sequence * case.rows.width + row])
    assert all(map(torch.equal, stored, case.pool.bytes()))


@FORMATS
def test_verify_rows_have_the_bits_of_one_row_calls(operands, kind):
    assert_rows_stand_alone(make_case(operands, kind, [62, 31], [4, 1], 4, heads=2))


@pytest.mark.parametrize("start", [126, 255])
def test_rows_on_both_sides_of_a_change_of_split_length(operands, low_tiers, start):
    case = make_case(operands, "bf16", [start], [4], 4, heads=2)
    check(case)
    assert_rows_stand_alone(case)


def test_a_row_has_the_same_bits_in_any_batch(operands):
    case = make_case(operands, "bf16", [5, 70, 129], [1, 1, 1], 1, heads=2)
    result = run(case)
    for sequence in range(3):
        assert torch.equal(run(case.one(sequence, 0))[0], result[sequence])
    wider = dataclasses.replace(
        case.rows,
        block_tables=torch.cat([case.rows.block_tables.flip(0)] * 2, dim=1),
        table_rows=case.rows.table_rows.flip(0),
    )
    assert torch.equal(run(dataclasses.replace(case, rows=wider)), result)


def test_how_many_programs_share_the_splits_changes_no_bits(operands, monkeypatch):
    case = make_case(operands, "bf16", [300], [1], 1, heads=1)
    result = run(case)
    for lanes in (1, 3):
        monkeypatch.setattr(attention, "PROGRAMS", 1)
        monkeypatch.setattr(attention, "multiprocessors", lambda lanes=lanes: lanes)
        assert torch.equal(check(case), result)


@FORMATS
@pytest.mark.parametrize("part", ["key", "value"])
def test_a_broken_row_does_not_reach_the_rows_before_it(operands, kind, part):
    case = make_case(operands, kind, [30, 3], [4, 1], 4, heads=2)
    healthy = run(case)
    place = 2 * SIZE * case.mixer.heads + (SIZE if part == "value" else 0) + 17
    case.stacked[2, place] = math.nan
    result = run(case)
    assert torch.equal(result[:2], healthy[:2])
    assert torch.equal(result[4], healthy[4])
    assert result[2:4].isnan().all(-1).all()


def test_unfused_attention_and_its_padding(operands):
    case = make_case(operands, "bf16", [61, 0, 128], [4, 0, 2], 4, heads=2)
    run(case)
    queries, _ = case.expected_store()
    q = queries.to(operands.device, torch.bfloat16)
    with GuardedAllocations():
        result = paged_decode_attention(q, case.pool.cache, case.rows, SIZE**-0.5)
    reads = wide(case.pool.cache), on_cpu(case.rows), SIZE**-0.5
    oracle, baseline = oracle_attention(q.cpu().double(), *reads), torch_attention(q, *reads)
    assert_sequences_close(result, oracle, baseline, case.rows.starts, case.rows.live)
    assert not result[4:8].any()
    case.pool.cache.values.flatten(0, 1)[case.slots[3]] = math.nan
    spoilt = paged_decode_attention(q, case.pool.cache, case.rows, SIZE**-0.5)
    assert torch.equal(spoilt[:3], result[:3])
    assert spoilt[3].isnan().all()


@pytest.mark.parametrize("start", [1, 63, 130])
def test_tokens_before_the_first_are_not_seen(operands, start):
    case = make_case(operands, "bf16", [start, 40], [2, 1], 2, heads=2)
    run(case)
    q = case.expected_store()[0].to(operands.device, torch.bfloat16)
    rows = dataclasses.replace(case.rows, first=1)
    result = paged_decode_attention(q, case.pool.cache, rows, SIZE**-0.5)
    reads = wide(case.pool.cache), on_cpu(rows), SIZE**-0.5
    oracle, baseline = oracle_attention(q.cpu().double(), *reads), torch_attention(q, *reads)
    assert_sequences_close(result, oracle, baseline, rows.starts, rows.live)
    whole = paged_decode_attention(q, case.pool.cache, case.rows, SIZE**-0.5)
    assert not torch.equal(whole[0], result[0])


def test_pages_of_other_sizes_are_refused(operands):
    case = make_case(operands, "bf16", [3], [1], 1)
    keys = torch.zeros(2, 32, 1, SIZE, dtype=torch.bfloat16, device=operands.device)
    case.pool.cache = KvCache("bf16", keys, keys.clone())
    with pytest.raises(OpError, match=r"pages of 32 tokens.*pages of 64"):
        attention_mix_decode(*case.fused())


def test_operands_that_do_not_fit_are_refused(operands):
    case = make_case(operands, "bf16", [3], [1], 1)
    cache = case.pool.cache
    for broken, words in (
        (dataclasses.replace(case, stacked=case.stacked[:, 1:]), "stacked"),
        (dataclasses.replace(case, mixer=dataclasses.replace(case.mixer, kv_heads=2)), "mixer"),
        (dataclasses.replace(case, stacked=case.stacked.repeat(2, 1)), "sequences"),
    ):
        with pytest.raises(OpError, match=words):
            attention_mix_decode(*broken.fused())
    q = torch.zeros(1, 17, SIZE, dtype=torch.bfloat16, device=operands.device)
    with pytest.raises(OpError, match="query heads"):
        paged_decode_attention(q, cache, case.rows, 1.0)
    for bad, words in (
        (KvCache("nf4", cache.keys, cache.values), "format 'nf4'"),
        (KvCache("int8", cache.keys, cache.values), "format int8 holds"),
        (KvCache("bf16", cache.keys.mT, cache.values.mT), "head_size 1|strided"),
        (KvCache("int8", cache.keys.char(), cache.values.char()), "needs key_scales"),
    ):
        with pytest.raises(OpError, match=words):
            paged_decode_attention(q[:, :4].contiguous(), bad, case.rows, 1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("start", [4094, 8191, 16383, 40000])
@FORMATS
def test_long_contexts(kind, start):
    operands = Operands(4, "cuda")
    case = make_case(operands, kind, [start, 700, 0, 9000], [4, 3, 1, 4], 4, heads=16, kv=4)
    check(case)
    assert_rows_stand_alone(case)


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "kv"), [(24, 4), (16, 2), (8, 2), (32, 2), (64, 4)])
def test_geometries_of_the_family(heads, kv):
    operands = Operands(5, "cuda")
    for width in (1, 2, 4, 8, 16):
        starts, live = [4090, 100, 1023, 5], [width, 1, width, 0]
        case = make_case(operands, "bf16", starts, live, width, heads=heads, kv=kv)
        check(case)
        assert_rows_stand_alone(case)


@pytest.mark.gpu
def test_a_captured_call_serves_every_length():
    operands = Operands(6, "cuda")
    case = make_case(operands, "bf16", [300, 20], [1, 1], 1, heads=16, kv=4)
    arguments = case.fused()
    attention_mix_decode(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attention_mix_decode(*arguments)
    for starts in ([300, 20], [63, 21], [0, 5], [299, 0]):
        case.rows.starts.copy_(torch.tensor(starts))
        arguments[-1].copy_(case.slots)
        graph.replay()
        assert torch.equal(captured, attention_mix_decode(*arguments))
        judge(case, captured)
