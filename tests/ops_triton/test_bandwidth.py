"""The kernel that measures read bandwidth reads every word that it says it read, once."""

from __future__ import annotations

import pytest
import torch

from ninfer_ops_triton.bench.bandwidth import SHAPES, add_up


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("blocks", [1, 37])
def test_every_word_counts_once(device, shape, blocks):
    """A sum of random words modulo 2^32 changes with each that is left out or read twice."""
    generator = torch.Generator().manual_seed(blocks)
    count = blocks * shape.block + 5
    words = torch.randint(-(2**31), 2**31, (count,), generator=generator).to(torch.int32)
    found, read = add_up(words.to(device), shape)
    assert (int(found.sum()) - int(words[:read].long().sum())) % 2**32 == 0
    assert 0 <= count - read < shape.block * (len(found) + 1)
