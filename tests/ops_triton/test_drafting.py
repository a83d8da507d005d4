"""Convolution, candidates and walk of block drafters, against the reference."""

from __future__ import annotations

import math

import pytest
import torch
from harness import GuardedAllocations, Operands, assert_close_to_oracle

from ninfer_core.ops.contracts.values import Candidates
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference import drafting as reference
from ninfer_ops_triton import drafting

BF16, I32 = torch.bfloat16, torch.int32
NAN, INF = math.nan, math.inf


def conv_operands(operands, rows, channels, groups, dtype=BF16):
    """x and dynamic are views into wider rows."""
    x = operands.normal(rows, channels + 8, dtype=dtype)[:, :channels]
    dynamic = operands.normal(rows, 4 * groups + 8, dtype=dtype)[:, : 4 * groups]
    return x, dynamic, operands.normal(2, 2, channels)


@pytest.mark.parametrize(
    ("rows", "width", "channels", "groups"), [(6, 3, 64, 4), (16, 16, 1040, 65), (3, 1, 48, 3)]
)
@pytest.mark.parametrize("side", [0, 1])
def test_block_conv(operands, rows, width, channels, groups, side):
    x, dynamic, base = conv_operands(operands, rows, channels, groups)
    with GuardedAllocations():
        result = drafting.block_conv(x, dynamic, base, side, width)
    wide = [t.cpu().double() for t in (x, dynamic, base)]
    assert_close_to_oracle(result, reference.block_conv(*wide, side, width), ulps=1)


def test_block_conv_in_fp32_and_a_broken_block(operands):
    x, dynamic, base = conv_operands(operands, 6, 32, 2, torch.float32)
    healthy = drafting.block_conv(x, dynamic, base, 1, 3)
    oracle = reference.block_conv(*(t.cpu().double() for t in (x, dynamic, base)), 1, 3)
    assert_close_to_oracle(healthy, oracle)
    x[2] = NAN
    assert torch.equal(drafting.block_conv(x, dynamic, base, 1, 3)[3:], healthy[3:])
    one = slice(3, 6)
    alone = drafting.block_conv(x[one], dynamic[one], base, 1, 3)
    assert torch.equal(alone, healthy[one])


@pytest.fixture
def small_blocks(monkeypatch):
    """Short rows have several blocks, the last of them cut."""
    monkeypatch.setattr(drafting, "LOGITS", 32)


def hard_logits(operands, rows, vocabulary):
    """Few distinct values, so that ties are everywhere, and what a broken drafter would give."""
    logits = operands.integers(9, rows, vocabulary).float()
    logits[0] = operands.normal(vocabulary)
    logits[1, 40:70] = 20.0
    logits[2, ::3], logits[2, 5], logits[2, 9] = NAN, INF, -INF
    logits[3] = NAN
    logits[4, :] = -INF
    logits[5, :40], logits[5, 40:] = -0.0, 0.0
    return logits


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("count", "addressable"), [(16, 100), (16, 131), (1, 131), (5, 96), (16, 16), (50, 131)]
)
def test_candidates_are_exact(operands, count, addressable):
    logits = hard_logits(operands, 7, 131)
    with GuardedAllocations():
        found = drafting.draft_candidates(logits, count, addressable)
    expected = reference.draft_candidates(logits.cpu(), count, addressable)
    assert found.ids.dtype == I32
    assert torch.equal(found.ids.cpu(), expected.ids)
    assert torch.equal(found.values.cpu(), expected.values)


def test_candidates_of_one_block_and_of_a_strided_row(operands):
    logits = operands.normal(2, 600)[:, :500]
    found = drafting.draft_candidates(logits, 16, 480)
    expected = logits[:, :480].cpu().topk(16, dim=1)
    assert torch.equal(found.ids.cpu().long(), expected.indices)
    assert torch.equal(found.values.cpu(), expected.values)


def walk_operands(operands, sequences, steps, count, rank, dtype=BF16, vocabulary=90):
    """Values so close that the pair scores decide."""
    rows = sequences * steps
    ids = torch.stack([torch.randperm(vocabulary, generator=operands.generator)[:count]
                       for _ in range(rows)]).to(operands.device, I32)  # fmt: skip
    values = operands.normal(rows, count).sort(dim=1, descending=True).values
    hidden = operands.normal(rows, rank + 8, dtype=dtype)[:, :rank]
    tables = [operands.normal(vocabulary, rank, dtype=dtype, scale=rank**-0.25) for _ in range(2)]
    return Candidates(ids, values), hidden, operands.integers(vocabulary, sequences), *tables


def expected_walk(candidates, hidden, anchors, *tables):
    wide = Candidates(candidates.ids.cpu(), candidates.values.cpu().double())
    return reference.draft_walk(
        wide, hidden.cpu().double(), anchors.cpu(), *(t.cpu().double() for t in tables)
    )


@pytest.mark.parametrize(
    ("sequences", "steps", "count", "rank"),
    [(2, 4, 16, 256), (3, 1, 5, 32), (1, 15, 16, 64), (1, 2, 1, 100), (1, 2, 40, 32)],
)
def test_the_walk_is_that_of_float64(operands, sequences, steps, count, rank):
    args = walk_operands(operands, sequences, steps, count, rank)
    with GuardedAllocations():
        drafts = drafting.draft_walk(*args)
    assert drafts.dtype == I32
    expected = expected_walk(*args)
    assert torch.equal(drafts.cpu(), expected)
    first = args[0].ids.view(sequences, steps, -1)[..., 0].cpu()
    assert count == 1 or not torch.equal(expected, first), "pair scores decide nothing here"


def test_sequences_walk_alone(operands):
    candidates, hidden, anchors, *tables = walk_operands(operands, 3, 4, 16, 64)
    together = drafting.draft_walk(candidates, hidden, anchors, *tables)
    hidden[4:8] = NAN
    for b in (0, 2):
        mine = slice(4 * b, 4 * b + 4)
        own = Candidates(candidates.ids[mine], candidates.values[mine])
        alone = drafting.draft_walk(own, hidden[mine], anchors[b : b + 1], *tables)
        assert torch.equal(alone[0], together[b])
    broken = drafting.draft_walk(candidates, hidden, anchors, *tables)
    assert torch.equal(broken[[0, 2]], together[[0, 2]])
    assert torch.equal(broken[1], candidates.ids[4:8, 0])


def test_ties_and_broken_scores_take_the_first(operands):
    device = operands.device
    candidates = Candidates(
        torch.tensor([[7, 2], [3, 5], [1, 0]], dtype=I32, device=device),
        torch.tensor([[1.0, 1.0], [NAN, 0.0], [NAN, NAN]], device=device),
    )
    table = torch.zeros(8, 32, device=device)
    anchors = torch.tensor([4], dtype=I32, device=device)
    hidden = torch.zeros(3, 32, device=device)
    drafts = drafting.draft_walk(candidates, hidden, anchors, table, table)
    assert drafts.tolist() == [[7, 5, 1]]


def test_operands_that_do_not_fit_are_refused(operands):
    x, dynamic, base = conv_operands(operands, 6, 32, 2)
    for args, words in (
        ((x, dynamic, base, 0, 4), "whole blocks of 4"),
        ((x, dynamic[:, :6], base, 0, 3), "dynamic is"),
        ((x, dynamic, base[:1], 0, 3), "base is"),
        ((x, dynamic, base, 2, 3), "side is 2"),
    ):
        with pytest.raises(OpError, match=words):
            drafting.block_conv(*args)
    for count, addressable in ((0, 9), (65, 90), (4, 3), (4, 100)):
        with pytest.raises(OpError, match=f"{count} candidates of {addressable}"):
            drafting.draft_candidates(operands.normal(1, 99), count, addressable)
    candidates, hidden, anchors, *tables = walk_operands(operands, 2, 2, 4, 32)
    for args, words in (
        ((candidates, hidden, anchors[:0].new_zeros(3), *tables), "3 sequences"),
        ((candidates, hidden[:3], anchors, *tables), "hidden is"),
        ((candidates, hidden, anchors, tables[0], tables[1][:, :16]), "successor is"),
    ):
        with pytest.raises(OpError, match=words):
            drafting.draft_walk(*args)


@pytest.mark.gpu
def test_real_vocabularies():
    operands = Operands(9, "cuda")
    logits = operands.normal(120, 248_320)
    logits[1] = logits[1].bfloat16().float()
    found = drafting.draft_candidates(logits, 16, 248_077)
    expected = reference.draft_candidates(logits, 16, 248_077)
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.values, expected.values)


@pytest.mark.gpu
def test_a_captured_walk_is_that_of_float64():
    args = walk_operands(Operands(10, "cuda"), 8, 15, 16, 256, vocabulary=4096)
    drafting.draft_walk(*args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = drafting.draft_walk(*args)
    graph.replay()
    assert torch.equal(captured.cpu(), expected_walk(*args))
