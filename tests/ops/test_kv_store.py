"""Rotary angles, slots, and what is written where."""

from __future__ import annotations

import math

import pytest
import torch

from ninfer_core.ops.contracts.values import KvCache
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.rope import interleaved_axes, inverse_frequencies

EPS = 1e-6
THETA = 1e7


def test_axes_of_the_published_section():
    axes = interleaved_axes([11, 11, 10]).tolist()
    assert [j for j, axis in enumerate(axes) if axis == 1] == list(range(1, 32, 3))
    assert [j for j, axis in enumerate(axes) if axis == 2] == list(range(2, 30, 3))
    assert [j for j, axis in enumerate(axes) if axis == 0] == list(range(0, 31, 3))


def test_axes_of_a_small_section():
    assert interleaved_axes([2, 1, 1]).tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("section", [[4, 4], [1, 1, 6], [-1, 2, 3]])
def test_impossible_sections_are_refused(section):
    with pytest.raises(OpError, match="mrope_section"):
        interleaved_axes(section)


def test_angles_take_each_axis_and_stay_accurate_far_out(ops):
    positions = torch.tensor([[5, 262143], [7, 100], [9, 0]], dtype=torch.int32)
    axes, frequencies = interleaved_axes([11, 11, 10]), inverse_frequencies(64, THETA)
    cos, sin = ops.rope_angles(positions, frequencies, axes)
    for row in range(2):
        for j in range(32):
            frequency = torch.tensor(THETA ** (-2 * j / 64), dtype=torch.float32)
            angle = float(positions[axes[j], row] * frequency)
            drift = angle * 2**-23
            assert cos[row, j] == pytest.approx(math.cos(angle), abs=2e-6 + drift)
            assert sin[row, j] == pytest.approx(math.sin(angle), abs=2e-6 + drift)


def test_slots_follow_pages_and_skip_padding(ops, paged):
    rows = paged([[7, 3, 9], [4, 2]], starts=[126, 0], live=[4, 2], width=4)
    expected = [3 * 64 + 62, 3 * 64 + 63, 9 * 64, 9 * 64 + 1, 4 * 64, 4 * 64 + 1, -1, -1]
    assert ops.kv_slots(rows).tolist() == expected


def rotated(x, scale, positions):
    """Norm and rotate [T, heads, D] in fp64, pair by pair, text positions."""
    wide = x.double()
    wide = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * scale.double()
    out = wide.clone()
    for row, position in enumerate(positions):
        for j in range(32):
            angle = position * THETA ** (-2 * j / 64)
            a, b = wide[row, :, j], wide[row, :, j + 32]
            out[row, :, j] = a * math.cos(angle) - b * math.sin(angle)
            out[row, :, j + 32] = b * math.cos(angle) + a * math.sin(angle)
    return out


@pytest.mark.parametrize("slots", [[130], [5, 64, 63], [200, -1, 0, -1]])
def test_norm_rope_store_writes_its_slots_alone(ops, operands, slots):
    count, heads, kv, size = len(slots), 4, 2, 256
    fused = operands.normal(count, heads * 2 * size + 2 * kv * size)
    q = fused[:, : heads * 2 * size].view(count, heads, 2 * size)[..., :size]
    k, v = fused[:, heads * 2 * size :].view(count, 2, kv, size).unbind(1)
    q_scale, k_scale = operands.normal(size), operands.normal(size)
    positions = [3 + 11 * row for row in range(count)]
    cos, sin = ops.rope_angles(
        torch.tensor([positions] * 3, dtype=torch.int32),
        inverse_frequencies(64, THETA),
        interleaved_axes([11, 11, 10]),
    )
    cache = operands.cache(4, kv, size)
    before = KvCache(cache.format, cache.keys.clone(), cache.values.clone())
    kept = fused.clone()
    queries = ops.qk_norm_rope_store(
        q, k, v, q_scale, k_scale, EPS, cos, sin, cache, torch.tensor(slots)
    )
    assert queries.is_contiguous()
    assert torch.equal(fused, kept)
    torch.testing.assert_close(queries.double(), rotated(q, q_scale, positions), rtol=0, atol=2e-5)
    expected = rotated(k, k_scale, positions)
    for row, slot in enumerate(slots):
        if slot < 0:
            continue
        page, offset = divmod(slot, 64)
        torch.testing.assert_close(
            cache.keys[page, offset].double(), expected[row], rtol=0, atol=2e-5
        )
        assert torch.equal(cache.values[page, offset], v[row])
        cache.keys[page, offset] = before.keys[page, offset]
        cache.values[page, offset] = before.values[page, offset]
    assert torch.equal(cache.keys, before.keys)
    assert torch.equal(cache.values, before.values)
