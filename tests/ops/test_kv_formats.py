"""Key/value formats with scales: what is stored, and attention over it."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from ninfer_core.ops.contracts.values import KvCache
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference.kv_store import decode, encode

KV, SIZE = 2, 128
GROUP = {"int8": 64, "fp8": SIZE}
LARGEST = {"int8": 127, "fp8": 448}
FORMATS = pytest.mark.parametrize("kind", ["int8", "fp8"])


def e4m3_values() -> list[Fraction]:
    """The value of every code with sign 0, from the format's definition; the last is NaN."""
    values = []
    for code in range(127):
        exponent, mantissa = code >> 3, code & 7
        values.append(
            Fraction(8 + mantissa, 8) * Fraction(2) ** (exponent - 7)
            if exponent
            else Fraction(mantissa, 8) * Fraction(2) ** -6
        )
    return values


def nearest(ratio: Fraction, kind: str) -> Fraction:
    """The code value nearest to ``ratio``; of two, the even one."""
    if kind == "int8":
        return Fraction(round(ratio))
    values = e4m3_values()
    size = abs(ratio)
    best = min(range(127), key=lambda code: (abs(values[code] - size), code & 1))
    return values[best] * (1 if ratio >= 0 else -1)


def empty_cache(kind: str, pages: int, fill: float = 0.0) -> KvCache:
    element = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}[kind]
    pools = [torch.zeros(pages, 64, KV, SIZE, dtype=element) for _ in range(2)]
    scales = [torch.full((pages, 64, KV, SIZE // GROUP[kind]), fill) for _ in range(2)]
    return KvCache(kind, *pools, *scales)


def store(ops, cache, k, v, slots):
    """Store without norm and rotation in the way: unit scales, no angles."""
    rows = k.shape[0]
    cos, sin = torch.ones(rows, 1), torch.zeros(rows, 1)
    ones = torch.ones(SIZE)
    return ops.qk_norm_rope_store(k, k, v, ones, ones, 1e-6, cos, sin, cache, torch.tensor(slots))


@FORMATS
def test_codes_are_the_nearest_and_ties_go_to_even(kind):
    top = LARGEST[kind]
    row = torch.zeros(SIZE)
    ties = [2.5, 3.5, -4.5, 0.5] if kind == "int8" else [17.0, 19.0, -21.0, 2.0**-10]
    for start in range(0, SIZE, GROUP[kind]):
        row[start : start + 5] = torch.tensor([top, *ties])
        row[start + 5 : start + 30] = torch.linspace(-top, top, 25) * 0.9137
    codes, scales = encode(kind, row)
    assert scales.tolist() == [1.0] * (SIZE // GROUP[kind])
    expected = [float(nearest(Fraction(value), kind)) for value in row.tolist()]
    assert codes.float().tolist() == expected


@FORMATS
def test_scales_are_the_largest_magnitude_of_each_group(kind, operands):
    rows = operands.normal(3, KV, SIZE)
    rows[1, 0, 70] = -9.0
    codes, scales = encode(kind, rows)
    assert scales.shape == (3, KV, SIZE // GROUP[kind])
    groups = rows.unflatten(-1, (-1, GROUP[kind]))
    for place in [(0, 0), (1, 0), (2, 1)]:
        for group, scale in zip(groups[place], scales[place], strict=True):
            largest = max(abs(value) for value in group.tolist())
            assert scale.item() == pytest.approx(largest / LARGEST[kind], rel=1e-7)
    step = scales.unsqueeze(-1) * (0.5 if kind == "int8" else 16)
    decoded = decode(kind, codes, scales, torch.float32).unflatten(-1, (-1, GROUP[kind]))
    assert ((decoded - groups).abs() <= step * 1.0001).all()


@FORMATS
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_zeros_and_non_finite_groups(kind, broken):
    rows = torch.zeros(2, SIZE)
    rows[1, 3] = broken
    codes, scales = encode(kind, rows)
    assert not codes.float().any()
    assert not scales[0].any()
    assert math.isnan(scales[1, 0])
    assert scales[1, 1:].tolist() == [0.0] * (SIZE // GROUP[kind] - 1)
    assert decode(kind, codes, scales, torch.float32)[1, : GROUP[kind]].isnan().all()


@FORMATS
def test_tiny_groups_become_zero_and_huge_ones_stay_finite(kind):
    for size in (1e-45, 3e38):
        codes, scales = encode(kind, torch.full((SIZE,), size))
        decoded = decode(kind, codes, scales, torch.float32)
        assert decoded.isfinite().all()
        assert decoded.tolist() == pytest.approx([size] * SIZE, rel=1e-6, abs=1e-40)


@FORMATS
def test_store_writes_its_slots_alone(ops, operands, kind):
    cache = empty_cache(kind, 3, fill=7.0)
    k, v = operands.normal(3, KV, SIZE), operands.normal(3, KV, SIZE)
    store(ops, cache, k, v, [130, -1, 5])
    for scales, pool, rows in (
        (cache.key_scales, cache.keys, k / (k.square().mean(-1, keepdim=True) + 1e-6).sqrt()),
        (cache.value_scales, cache.values, v),
    ):
        flat = decode(kind, pool, scales, torch.float32).flatten(0, 1)
        for row, slot in ((0, 130), (2, 5)):
            off = (flat[slot] - rows[row]).abs().amax()
            assert off <= rows[row].abs().amax() / (250 if kind == "int8" else 25)
            assert off > 0
        untouched = [slot for slot in range(192) if slot not in (130, 5)]
        assert (scales.flatten(0, 1)[untouched] == 7).all()
        assert not pool.float().flatten(0, 1)[untouched].any()


@FORMATS
def test_attention_over_codes_is_attention_over_what_they_stand_for(ops, operands, paged, kind):
    cache = empty_cache(kind, 4)
    k, v = operands.normal(192, KV, SIZE), operands.normal(192, KV, SIZE)
    store(ops, cache, k, v, list(range(192)))
    plain = KvCache(
        "fp64",
        decode(kind, cache.keys, cache.key_scales, torch.float64),
        decode(kind, cache.values, cache.value_scales, torch.float64),
    )
    q = operands.normal(4, 6, SIZE, dtype=torch.float64)
    for pages in ([0, 1, 2], [2, 0, 1]):
        rows = paged([pages], starts=[125], live=[4], width=4)
        for op in (ops.paged_decode_attention, ops.paged_prefill_attention):
            torch.testing.assert_close(
                op(q, cache, rows, 0.1), op(q, plain, rows, 0.1), rtol=0, atol=1e-13
            )
            narrow = op(q.float(), cache, rows, 0.1)
            torch.testing.assert_close(narrow.double(), op(q, plain, rows, 0.1), rtol=0, atol=2e-6)


@FORMATS
def test_a_broken_key_shows_in_the_rows_that_see_it(ops, operands, paged, kind):
    cache = empty_cache(kind, 2)
    k = operands.normal(128, KV, SIZE)
    k[65, 1, 9] = math.inf
    store(ops, cache, k, k.nan_to_num(0, 0, 0), list(range(128)))
    rows = paged([[0, 1]], starts=[64], live=[2], width=2)
    result = ops.paged_decode_attention(operands.normal(2, 6, SIZE), cache, rows, 0.1)
    assert result[0].isfinite().all()
    assert result[1, :3].isfinite().all()
    assert result[1, 3:].isnan().all()


@FORMATS
def test_missing_scales_are_refused(ops, operands, kind):
    cache = empty_cache(kind, 1)
    bare = KvCache(kind, cache.keys, cache.values)
    k = operands.normal(1, KV, SIZE)
    with pytest.raises(OpError, match="key_scales"):
        store(ops, bare, k, k, [0])
