"""What only a GPU can show of draws and round ends: capture, and rows of the real vocabulary."""

from __future__ import annotations

import pytest
import torch
from laws import Verdicts, settings

from ninfer_core.ops.contracts.rounds import LaneTables, RoundRing, RoundRows
from ninfer_core.ops.contracts.values import DraftLaw, DrawPurpose, TokenCounts, TokenMasks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
VOCABULARY, ADDRESSABLE, LANES = 248320, 248077, 8
DECODE = DrawPurpose.DECODE
CHOSEN = (
    {"top_k": 20, "top_p": 0.95, "temperature": 0.7, "seeds": 1},
    {"top_p": 0.95, "seeds": 2},
    {"top_p": 0.95, "seeds": 3, "temperature": 1.5},
    {"seeds": 4},
    {"min_p": 0.05, "seeds": 5},
    {"top_k": 5000, "top_p": 0.9, "temperature": 2.0, "seeds": 6},
    {"temperature": 0.0},
    {"top_k": 500, "seeds": 7, "bias_ids": (5, 100_000), "bias": (30.0, 31.0)},
)


@pytest.fixture
def ops():
    from ninfer_ops_triton import rounds, sampling

    return {**sampling.OPS, **rounds.OPS}


@pytest.fixture
def logits(operands, device):
    """Rows with a broad bulk and forty tokens above it, as a language model's are."""
    values = operands.normal(LANES, VOCABULARY, scale=2.2)
    for row in values:
        row[operands.integers(ADDRESSABLE, 40).long()] += torch.linspace(4, 14, 40, device=device)
    values[:, ADDRESSABLE:] = -torch.inf
    return values


def no_counts(device):
    shape = (LANES, VOCABULARY)
    return TokenCounts(
        torch.zeros(shape, dtype=torch.int32, device=device),
        torch.zeros(shape, dtype=torch.bool, device=device),
    )


def captured(call):
    """The call in a graph, after a first run that compiles its kernels; and its result."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


def test_real_rows_captured(ops, device, logits):
    """Replays read the positions of the day; every draw is that of the float64 law."""
    rows, counts, lanes = settings(device, *CHOSEN), no_counts(device), torch.arange(LANES)
    lanes = lanes.to(device)
    where = torch.zeros(LANES, dtype=torch.int32, device=device)
    graph, drawn = captured(
        lambda: ops["draw_rows"](logits, ADDRESSABLE, rows, counts, lanes, where, DECODE)
    )
    verdicts, raised = Verdicts(), logits.cpu()
    raised[7, 5] += 30.0
    raised[7, 100_000] += 31.0
    for turn in range(5):
        where.copy_(torch.arange(LANES) + 10 * turn)
        graph.replay()
        torch.cuda.synchronize()
        for row, filters in enumerate(CHOSEN):
            token = int(drawn.tokens[row])
            verdicts.check(token, raised[row], filters, row + 10 * turn, DECODE)
    assert verdicts.close <= verdicts.seen // 4
    assert not drawn.broken.any()


def test_flat_rows(ops, device):
    """All tokens alike: the cuts are made of ties alone."""
    logits = torch.zeros(LANES, VOCABULARY, device=device)
    chosen = [{"top_k": 300, "seeds": 1}, {"top_p": 0.001, "seeds": 2}, {"top_k": 5000}] * 3
    tokens = ops["sample_tokens"](
        logits, settings(device, *chosen[:LANES]),
        torch.arange(LANES, dtype=torch.int32, device=device), DECODE,
    )  # fmt: skip
    for row, token in enumerate(tokens.tolist()):
        assert token < (300, 249, 5000)[row % 3]


def test_the_other_ops_capture(ops, device, logits, operands):
    """Nothing waits for the device, allocates outside of the graph or branches on the host."""
    rows, counts = settings(device, *CHOSEN[:4]), no_counts(device)
    lanes = torch.arange(4, device=device)
    where = torch.arange(LANES, dtype=torch.int32, device=device)
    drafts = operands.integers(ADDRESSABLE, 4, 1)
    masks = TokenMasks(
        operands.integers(2**31 - 1, LANES, VOCABULARY // 32),
        torch.ones(LANES, dtype=torch.bool, device=device),
    )
    live = torch.ones(4, dtype=torch.int32, device=device)
    draft_law = DraftLaw(drafts.unsqueeze(2), torch.ones(4, 1, 1, device=device))
    taken = torch.tensor([1, 0, 1, 1], dtype=torch.int32, device=device)

    def call():
        processed = ops["process_logits"](logits, rows, counts, lanes, where, drafts, masks)
        law = ops["sampling_law"](processed, rows)
        tokens = ops["sample_tokens"](processed, rows, where, DECODE)
        either = [
            ops["accept_drafts"](law, drafts, live, given, rows.seeds, where)
            for given in (None, draft_law)
        ]
        listed = ops["logprobs"](logits, tokens, 20)
        ops["count_tokens"](counts, lanes, drafts, taken)
        return [
            processed, law, tokens, ops["nonfinite_rows"](logits, ADDRESSABLE),
            listed.chosen, listed.top_ids, listed.top_values,
            *(value for one in either for value in (one.accepted, one.tokens)),
        ]  # fmt: skip

    eager = [value.clone() for value in call()]
    graph, results = captured(call)
    graph.replay()
    torch.cuda.synchronize()
    for mine, expected in zip(results, eager, strict=True):
        assert torch.equal(mine, expected)
    assert int(counts.generated.sum()) == 3 * 3
    alone = ops["sampling_law"](eager[0][2:4], settings(device, CHOSEN[1]))
    assert torch.equal(alone, eager[1][2:4])


def test_captured_rounds_feed_each_other(ops, device):
    """One graph of both ends, enqueued ahead of the host by a round."""
    depth, words = 4, 4 + 8 * LANES + 3 * 16
    ring = RoundRing(
        torch.zeros(depth, words, dtype=torch.int32).pin_memory(),
        torch.zeros(depth, 4 + 2 * LANES, dtype=torch.int32).pin_memory(),
        torch.zeros(1, dtype=torch.int32, device=device), LANES, 16,
    )  # fmt: skip
    ints = [torch.zeros(2, dtype=torch.int32, device=device) for _ in range(5)]
    longs = [torch.zeros(2, dtype=torch.int64, device=device) for _ in range(3)]
    rows = RoundRows(
        ints[0], longs[0], ints[1], ints[2], ints[3], longs[1], longs[2],
        torch.zeros(3, 2, dtype=torch.int32, device=device), ints[4],
    )  # fmt: skip
    tables = LaneTables(
        torch.tensor([0, 0, 7, 0, 0, 9, 0, 0], dtype=torch.int32, device=device),
        torch.zeros(LANES, 16, dtype=torch.int32, device=device),
    )
    counts, broken = no_counts(device), torch.zeros(2, dtype=torch.bool, device=device)

    def call():
        ops["begin_round"](ring, tables, rows)
        ops["publish_round"](ring, tables, rows, counts, rows.ids + rows.starts, broken)

    graph, _ = captured(call)
    torch.cuda.synchronize()
    ring.counter.zero_()
    ring.egress.zero_()
    tables.tokens.copy_(torch.tensor([0, 0, 7, 0, 0, 9, 0, 0]))
    counts.generated.zero_()
    torch.cuda.synchronize()
    expected = [7, 9]
    for number in range(12):
        place = ring.ingress[number % depth]
        place[:3] = torch.tensor([number, 2, 0])
        place[4:20] = torch.tensor([2, -1, number, 0, 0, 0, 0, 0, 5, -1, 1, 0, 0, 0, 0, 0])
        graph.replay()
        if number:
            wait_for(ring, number - 1, depth)
            expected = [expected[0] + number - 1, expected[1] + 1]
            answer = ring.egress[(number - 1) % depth].tolist()
            assert answer[:8] == [number, 0, 2, 0, expected[0], 0, expected[1], 0]
    torch.cuda.synchronize()
    assert int(ring.counter) == 12
    assert int(counts.generated.sum()) == 24


def wait_for(ring: RoundRing, number: int, depth: int) -> None:
    for _ in range(5_000_000):
        if int(ring.egress[number % depth, 0]) == number + 1:
            return
    raise AssertionError(f"round {number} left no flag")
