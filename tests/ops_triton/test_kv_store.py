"""Rotary angles, slots, and what the store kernel writes, against float64 and the reference."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from harness import GuardedAllocations, assert_close_to_oracle, relative_error
from paging import ROTARY, SIZE, assert_stored, make_case, make_pool, make_rows

from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference.kv_store import encode
from ninfer_core.ops.rope import interleaved_axes, inverse_frequencies
from ninfer_ops_triton.kv import kv_slots, place_rows, qk_norm_rope_store, rope_angles

FORMATS = pytest.mark.parametrize("kind", ["bf16", "int8", "fp8"])


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 40])
def test_angles_take_each_axis_and_stay_accurate_far_out(device, rows):
    generator = torch.Generator().manual_seed(3)
    positions = torch.randint(262144, (3, rows), generator=generator, dtype=torch.int32)
    axes, frequencies = interleaved_axes([11, 11, 10]), inverse_frequencies(64, 1e7)
    with GuardedAllocations():
        cos, sin = rope_angles(positions.to(device), frequencies.to(device), axes.to(device))
    angles = positions[axes].t().float() * frequencies
    for result, exact in ((cos, angles.double().cos()), (sin, angles.double().sin())):
        torch.testing.assert_close(result.cpu().double(), exact, rtol=0, atol=3e-7)


def test_angles_of_a_strided_table_and_few_frequencies(device):
    positions = torch.arange(15, dtype=torch.int32, device=device).view(3, 5)[:, :4]
    frequencies = torch.tensor([1.0, 0.25, 0.0625], device=device)
    axes = torch.tensor([2, 0, 1], device=device)
    cos, sin = rope_angles(positions, frequencies, axes)
    for row in range(4):
        for j, axis in enumerate([2, 0, 1]):
            angle = (axis * 5 + row) * 0.25**j
            assert cos[row, j].item() == pytest.approx(math.cos(angle), abs=1e-6)
            assert sin[row, j].item() == pytest.approx(math.sin(angle), abs=1e-6)


def test_slots_follow_pages_and_skip_padding(device):
    rows = make_rows([[7, 3, 9], [4, 2]], [126, 0], [4, 2], 4, device, table_rows=[0, 1])
    with GuardedAllocations():
        slots = kv_slots(rows)
    expected = [3 * 64 + 62, 3 * 64 + 63, 9 * 64, 9 * 64 + 1, 4 * 64, 4 * 64 + 1, -1, -1]
    assert slots.tolist() == expected
    swapped = make_rows([[4, 2], [7, 3, 9]], [126, 0], [4, 2], 4, device, table_rows=[1, 0])
    assert kv_slots(swapped).tolist() == expected


@pytest.mark.parametrize("width", [1, 4, 9])
def test_rows_are_placed_with_the_bits_of_slots_and_angles(operands, device, width):
    rows = make_rows([[7, 3, 9], [4, 2]], [126, 5], [width, width // 2], width, device)
    positions = operands.integers(262144, 3, 2 * width)
    frequencies = inverse_frequencies(64, 1e7).to(device)
    axes = interleaved_axes([11, 11, 10]).to(device)
    with GuardedAllocations():
        slots, cos, sin = place_rows(rows, positions, frequencies, axes)
    assert torch.equal(slots, kv_slots(rows))
    for found, wanted in zip((cos, sin), rope_angles(positions, frequencies, axes), strict=True):
        assert torch.equal(found, wanted)
    with pytest.raises(OpError, match=rf"must be \[3, {2 * width}\]"):
        place_rows(rows, positions[:, 1:], frequencies, axes)


def test_slots_of_a_long_chunk_on_pages_beyond_31_bits(device):
    pages = [2**26 + 5, 3, 2**30, 1, 2, 8]
    rows = make_rows([pages], [30], [290], 300, device)
    expected = [pages[token // 64] * 64 + token % 64 for token in range(30, 320)] + [-1] * 10
    assert kv_slots(rows).tolist() == expected


def store(case):
    q, _, k, v = case.split()
    scales, angles = (case.mixer.q_scale, case.mixer.k_scale), (case.cos, case.sin)
    arguments = (*scales, case.mixer.eps, *angles, case.pool.cache, case.slots)
    return qk_norm_rope_store(q, k, v, *arguments)


@FORMATS
@pytest.mark.parametrize(("heads", "kv", "count"), [(4, 1, 1), (6, 2, 5), (5, 1, 9), (32, 2, 2)])
def test_store_of_strided_views(operands, kind, heads, kv, count):
    case = make_case(operands, kind, [62], [max(1, count - 2)], count, heads=heads, kv=kv)
    before, kept = case.pool.bytes(), case.stacked.clone()
    with GuardedAllocations():
        queries = store(case).clone()
    case.pool.check()
    assert torch.equal(case.stacked, kept)
    assert_stored(case, before)
    assert queries.is_contiguous()
    assert_close_to_oracle(queries, case.expected_store()[0], ulps=1)


def test_store_in_fp32(operands):
    case = make_case(operands, "fp32", [3], [4], 4, dtype=torch.float32)
    before = case.pool.bytes()
    queries = store(case)
    assert_stored(case, before)
    assert relative_error(queries.cpu(), case.expected_store()[0]) < 3e-7


def edge_values(kind):
    """A row of one group after another with the scale 1: ties, the least codes, both zeros."""
    if kind == "int8":
        halves = torch.arange(-126.5, 127)[:252].view(4, 63)
        return torch.cat([torch.full((4, 1), 127.0), halves], dim=1).flatten()
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (codes[1:] + codes[:-1]) / 2
    return torch.cat([codes, -ties, torch.tensor([-0.0, -(2.0**-10), 1e-30])])


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_values_are_encoded_to_the_bits_of_the_reference(operands, kind):
    case = make_case(operands, kind, [0], [8], 8, dtype=torch.float32)
    _, _, _, v = case.split()
    v[0, 0] = edge_values(kind)
    v[1, 0] = 0
    v[2, 0, 70], v[3, 0, 200], v[4, 0, 3] = math.nan, math.inf, -math.inf
    v[5] *= 1e-38
    v[6] *= 3e37
    store(case)
    codes, scales = encode(kind, v.cpu())
    slots = case.slots
    found = case.pool.cache.values.view(torch.uint8).flatten(0, 1)[slots].cpu()
    made = case.pool.cache.value_scales.flatten(0, 1)[slots].cpu()
    torch.testing.assert_close(made, scales, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found, codes.view(torch.uint8))


def test_operands_that_do_not_fit_are_refused(operands):
    case = make_case(operands, "bf16", [0], [1], 1)
    q, _, k, v = case.split()
    scales, angles = (case.mixer.q_scale, case.mixer.k_scale), (case.cos, case.sin)
    rest = (*scales, 1e-6, *angles, case.pool.cache, case.slots)
    with pytest.raises(OpError, match="q is"):
        qk_norm_rope_store(q.repeat(1, 1, 2)[..., ::2], k, v, *rest)
    with pytest.raises(OpError, match="v is"):
        qk_norm_rope_store(q, k, v[..., :ROTARY], *rest)
    with pytest.raises(OpError, match="query heads"):
        qk_norm_rope_store(q.repeat(1, 5, 1), k, v, *rest)
    small = dataclasses.replace(case.pool.cache, keys=case.pool.cache.keys[:, :32])
    with pytest.raises(OpError, match="must both be"):
        qk_norm_rope_store(q, k, v, *scales, 1e-6, *angles, small, case.slots)
    odd = make_pool("bf16", 1, 1, operands.device).cache
    odd = dataclasses.replace(odd, keys=odd.keys[..., :96], values=odd.values[..., :96])
    with pytest.raises(OpError, match="head_size 96"):
        qk_norm_rope_store(q, k, v, *scales, 1e-6, *angles, odd, case.slots)
    assert q.shape[2] == SIZE
