"""Argmax, processing, laws, log-probabilities, acceptance and counts of the Triton backend."""

from __future__ import annotations

import math

import pytest
import torch
from harness import GuardedAllocations, guarded
from laws import law_of, settings
from quick import patch_once

from ninfer_core.ops.contracts.values import DraftLaw, DrawPurpose, TokenCounts, TokenMasks
from ninfer_core.ops.reference import OPS as REFERENCE
from ninfer_core.ops.reference.rng import uniform

sampling = pytest.importorskip("ninfer_ops_triton.sampling")
NAN, INF = math.nan, math.inf
HOST = torch.device("cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    patch_once(monkeypatch)


@pytest.fixture
def ops():
    return sampling.OPS


@pytest.mark.parametrize(("vocabulary", "addressable"), [(40, 40), (1024, 1000), (2049, 1025)])
def test_argmax(ops, operands, vocabulary, addressable):
    logits = operands.normal(9, vocabulary)
    logits[1] = logits[1].round()
    logits[2, :2] = torch.tensor([0.0, -0.0])
    logits[2, 2:] = -1.0
    logits[3, 3], logits[4, addressable - 1], logits[5, 0] = NAN, INF, -INF
    logits[6] = -INF
    logits[7] = -3e38
    logits[:, addressable:] = torch.tensor([9.0, NAN, INF, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0])[:, None]
    held = guarded(logits)
    with GuardedAllocations():
        drawn = ops["argmax_rows"](held.tensor, addressable)
    held.check()
    expected = REFERENCE.argmax_rows(logits.cpu(), addressable)
    assert drawn.broken.tolist() == [False, False, False, True, True, True, True, False, False]
    assert torch.equal(drawn.tokens.cpu(), expected.tokens)
    assert drawn.tokens.dtype == torch.int32
    again = ops["argmax_rows"](held.tensor[4:6], addressable)
    assert torch.equal(again.tokens, drawn.tokens[4:6])


CHOSEN = (
    {"repetition": 1.3, "bias_ids": (7, 1030, 7), "bias": (0.5, -2.0, 0.25)},
    {"presence": 0.5, "frequency": 0.3, "banned_ids": (0, 1025, 9), "banned_before": 11},
    {},
)


@pytest.fixture
def counts(operands):
    return TokenCounts(operands.integers(3, 4, 1031), operands.integers(2, 4, 1031).bool())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("drafted", [False, True])
def test_processing(ops, device, operands, counts, masked, drafted):
    """Every rule alone and together, over two blocks; bans end within a sequence's columns."""
    logits = operands.normal(6, 1031, scale=3.0)
    lanes = torch.tensor([3, 0, 2], device=device)
    where = torch.tensor([9, 10, 10, 11, 12, 13], dtype=torch.int32, device=device)
    drafts = torch.tensor([[7], [9], [-1]], dtype=torch.int32, device=device)
    masks = TokenMasks(operands.integers(2**31 - 1, 6, 33), torch.arange(6, device=device) % 2 == 1)
    before = logits.clone()
    with GuardedAllocations():
        processed = ops["process_logits"](
            logits, settings(device, *CHOSEN, room=5), counts, lanes, where,
            drafts if drafted else None, masks if masked else None,
        )  # fmt: skip
    assert torch.equal(logits, before)
    expected = REFERENCE.process_logits(
        logits.cpu(), settings(HOST, *CHOSEN),
        TokenCounts(counts.generated.cpu(), counts.prompt.cpu()),
        lanes.cpu(), where.cpu(), drafts.cpu() if drafted else None,
        TokenMasks(masks.words.cpu(), masks.active.cpu()) if masked else None,
    )  # fmt: skip
    torch.testing.assert_close(processed.cpu(), expected, rtol=3e-7, atol=1e-6)


def test_rows_that_ask_for_nothing_stay(ops, device, operands, counts):
    logits = operands.normal(2, 1031)
    where = torch.zeros(2, dtype=torch.int32, device=device)
    lanes = torch.tensor([1, 2], device=device)
    processed = ops["process_logits"](logits, settings(device, {}, {}), counts, lanes, where)
    assert torch.equal(processed, logits)


@pytest.mark.parametrize("top_k", [0, 1, 7])
@pytest.mark.parametrize("top_p", [1.0, 0.6, 0.05])
def test_law(ops, device, operands, top_k, top_p):
    chosen = [
        {"temperature": t, "top_k": top_k, "top_p": top_p, "min_p": m}
        for t in (0.0, 1e-42, 0.3, 1.0, 2.5)
        for m in (0.0, 0.2)
    ]
    logits = operands.normal(2 * len(chosen), 40, scale=2.0)
    logits[:, 36:] = -INF
    logits[5] = logits[5].round()
    logits[7] = -INF
    law = ops["sampling_law"](logits, settings(device, *chosen)).cpu()
    for row in range(len(logits)):
        expected, margin = law_of(logits[row], chosen[row // 2])
        if margin > 1e-6:
            torch.testing.assert_close(law[row].double(), expected, rtol=0, atol=1e-6)
            assert torch.equal(law[row] > 0, expected > 0)
    one = ops["sampling_law"](logits[4:5], settings(device, chosen[2]))
    assert torch.equal(one[0].cpu(), law[4])


@pytest.mark.parametrize("top", [0, 5, 99])
def test_logprobs(ops, device, operands, top):
    logits = operands.normal(3, 60, scale=4.0)
    logits[1] = logits[1].round()
    logits[2, 50:] = -INF
    tokens = operands.integers(50, 3)
    rows = ops["logprobs"](logits, tokens, top)
    law = logits.cpu().double().log_softmax(1)
    kept = min(top, 60)
    order = logits.cpu().argsort(dim=1, descending=True, stable=True)[:, :kept]
    torch.testing.assert_close(
        rows.chosen.cpu().double(), law.gather(1, tokens.cpu().long()[:, None])[:, 0],
        rtol=1e-6, atol=1e-6,
    )  # fmt: skip
    assert torch.equal(rows.top_ids.cpu(), order.int())
    torch.testing.assert_close(
        rows.top_values.cpu().double(), law.gather(1, order), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("count", [1, 3])
def test_numbers_are_the_contracts(device, count):
    seeds = torch.tensor([0, -1, -(1 << 63), 0x1234_5678_9ABC_DEF0], device=device)
    where = torch.arange(4 * count, dtype=torch.int32, device=device) * 65_536
    where[-1] = 2**31 - 1
    for purpose in DrawPurpose:
        bits = sampling.numbers(seeds, where, purpose).cpu()
        expected = uniform(seeds.cpu().repeat_interleave(count), where.cpu(), purpose)
        assert torch.equal(bits.float() * 2.0**-24, expected)


@pytest.mark.parametrize("with_law", [False, True])
def test_acceptance_is_that_of_the_reference(ops, device, operands, with_law):
    sequences, drafted, vocabulary = 200, 3, 12
    laws = operands.normal(sequences * (drafted + 1), vocabulary, scale=3.0).softmax(1)
    laws[::5] = laws[::5] * (laws[::5] > 0.1)
    live = operands.integers(drafted + 1, sequences)
    seeds = operands.integers(2**31 - 1, sequences, dtype=torch.int64)
    where = operands.integers(5000, sequences * (drafted + 1))
    order = operands.normal(sequences, drafted, vocabulary)
    order[::2] = laws.view(sequences, drafted + 1, -1)[::2, :-1]
    order = order.argsort(2, descending=True)[..., :5].int()
    drafts = order[..., 0].clone()
    order[:, :, 4] = -1
    draft_law = DraftLaw(order, operands.normal(sequences, drafted, 5).softmax(2))
    for b in range(sequences):
        drafts[b, int(live[b]) :] = -1
    given = (laws, drafts, live, draft_law if with_law else None, seeds, where)
    host = [value.cpu() if isinstance(value, torch.Tensor) else value for value in given]
    if with_law:
        host[3] = DraftLaw(draft_law.ids.cpu(), draft_law.probs.cpu())
        host[1] = host[1].clamp_min(0)
    expected, result = REFERENCE.accept_drafts(*host), ops["accept_drafts"](*given)
    assert len(expected.accepted.unique()) == drafted + 1
    assert torch.equal(result.accepted.cpu(), expected.accepted)
    assert torch.equal(result.tokens.cpu(), expected.tokens)
    assert result.accepted.dtype == result.tokens.dtype == torch.int32


def test_counts(ops, device, counts):
    before = counts.generated.clone()
    lanes = torch.tensor([2, 0, 3], device=device)
    tokens = torch.tensor([[5, 5, 9], [1, -1, -1], [4, 4, 4]], dtype=torch.int32, device=device)
    accepted = torch.tensor([3, 1, 0], dtype=torch.int32, device=device)
    ops["count_tokens"](counts, lanes, tokens, accepted)
    before[2, 5] += 2
    before[2, 9] += 1
    before[0, 1] += 1
    assert torch.equal(counts.generated, before)


def test_nonfinite_rows(ops, device):
    logits = torch.tensor([[0.0, 1.0, INF], [0.0, NAN, 0.0], [-INF, 0.0, 0.0]], device=device)
    assert ops["nonfinite_rows"](logits, 2).tolist() == [False, True, True]


def test_wrong_logits_are_refused(ops, device):
    from ninfer_core.ops.errors import OpError

    with pytest.raises(OpError, match="float32"):
        ops["argmax_rows"](torch.zeros(1, 8, dtype=torch.bfloat16, device=device), 8)
    with pytest.raises(OpError, match="1048576"):
        ops["argmax_rows"](torch.zeros(1, (1 << 20) + 1, device=device), 8)
