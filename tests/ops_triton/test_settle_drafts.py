"""Accepting drafts and placing the next ones in Triton, against the reference."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from harness import Guarded, GuardedAllocations

from ninfer_core.ops.contracts.verifying import SettledRows, VerifiedRows, VerifyAnswer
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference import OPS as REFERENCE

rounds = pytest.importorskip("ninfer_ops_triton.rounds")
I32 = torch.int32


def verified(operands, count, width):
    """Few different tokens, so that drafts are often right."""
    device = operands.device
    live = operands.integers(width, count) + 1
    ids = operands.integers(2, count * width)
    columns = [operands.integers(high, count) for high in (300, 9, 8, width + 2)]
    starts, deltas, remaining, most = columns
    return VerifiedRows(ids, starts, live, deltas - 4, remaining, most), torch.cat(
        [ids.view(count, width)[:, 1:], torch.ones(count, 1, dtype=I32, device=device)], 1
    ).flatten() ^ (operands.integers(5, count * width) == 0).to(I32)


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize(
    ("count", "width", "drafts"), [(4, 1, 3), (1, 2, 1), (3, 4, 3), (8, 16, 15), (5, 3, 7)]
)
def test_rows_settle_as_in_the_reference(operands, count, width, drafts, block):
    rows, tokens = verified(operands, count, width)
    broken = operands.integers(4, count * width) == 0
    sizes = (count * width, count * width, count)
    guards = [Guarded((size,), I32, operands.device) for size in sizes]
    answer = VerifyAnswer(*(guard.tensor for guard in guards))
    expected_answer = VerifyAnswer(*(torch.empty(size, dtype=I32) for size in sizes))
    host = VerifiedRows(*(getattr(rows, field.name).cpu() for field in fields(VerifiedRows)))
    expected = REFERENCE.settle_drafts(
        tokens.cpu(), broken.cpu(), host, expected_answer, drafts, block
    )
    with GuardedAllocations():
        made = rounds.settle_drafts(tokens, broken, rows, answer, drafts, block)
    for guard in guards:
        guard.check()
    for kind, found, wanted in (
        (VerifyAnswer, answer, expected_answer), (SettledRows, made, expected)
    ):  # fmt: skip
        for field in fields(kind):
            one, two = getattr(found, field.name).cpu(), getattr(wanted, field.name)
            assert one.dtype == two.dtype
            assert torch.equal(one, two), field.name


def test_rows_without_drafts_are_refused(operands):
    rows, tokens = verified(operands, 2, 2)
    answer = VerifyAnswer(*(operands.empty(n, dtype=I32) for n in (4, 4, 2)))
    with pytest.raises(OpError, match="3 rows of 2 sequences and 1 drafts"):
        rounds.settle_drafts(tokens[:3], tokens[:3] > 0, rows, answer, 1, False)
    with pytest.raises(OpError, match="0 drafts"):
        rounds.settle_drafts(tokens, tokens > 0, rows, answer, 0, False)
