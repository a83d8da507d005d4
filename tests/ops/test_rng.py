"""Philox4x32-10 against the known-answer vectors of its authors' library (Random123)."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.ops.contracts.values import DrawPurpose
from ninfer_core.ops.reference.rng import philox, uniform

ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES), (ONES,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("key", "counter", "words"), KNOWN)
def test_known_answers(key, counter, words):
    assert philox(key, counter) == words


@pytest.mark.parametrize("index", [0, 1, 2, 3, 4, 9])
def test_numbers_are_words_of_their_key(index):
    seeds = torch.tensor([0, 1, -1, -(1 << 63), (1 << 63) - 1, 0x1234_5678_9ABC_DEF0])
    positions = torch.tensor([0, 262143, 7, 1, 2**31 - 1, 99], dtype=torch.int32)
    expected = []
    for seed, position in zip(seeds.tolist(), positions.tolist(), strict=True):
        bits = seed % (1 << 64)
        words = philox((bits & ONES, bits >> 32), (position, DrawPurpose.ACCEPT, index // 4, 0))
        expected.append((words[index % 4] >> 8) / (1 << 24))
    few = uniform(seeds, positions, DrawPurpose.ACCEPT, index)
    many = uniform(seeds.repeat(20), positions.repeat(20), DrawPurpose.ACCEPT, index)
    assert few.tolist() == expected
    assert many.tolist() == expected * 20


def test_numbers_are_uniform_and_purposes_independent():
    positions = torch.arange(100_000, dtype=torch.int32)
    seeds = torch.tensor(5)
    a, b = (uniform(seeds, positions, purpose) for purpose in (1, 2))
    for numbers in (a, b):
        assert float(numbers.min()) >= 0
        assert float(numbers.max()) < 1
        cells = torch.histc(numbers, 100, 0, 1)
        assert float(((cells - 1000) ** 2 / 1000).sum()) < 99 + 6 * (2 * 99) ** 0.5
    together = torch.stack([a, b])
    assert abs(float(torch.corrcoef(together)[0, 1])) < 6 / 100_000**0.5
