"""Accepting drafts and placing the next ones, against the rule spelt out row by row."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.ops.contracts.verifying import VerifiedRows, VerifyAnswer

I32 = torch.int32


def spelt_out(row, drafts, block):
    """What the contract says of one sequence, in Python integers."""
    drawn, given = row["tokens"], row["ids"]
    accepted = 0
    broken = row["broken"]
    while accepted + 1 < row["live"] and drawn[accepted] == given[accepted + 1]:
        if broken[0] or broken[accepted + 1]:
            break
        accepted += 1
    place = row["start"] + accepted + 1
    wanted = max(0, min(row["remaining"] - accepted - 2, row["most"], drafts))
    if block:
        live, starts = [wanted + 1 if wanted else 0], [place]
        columns = [[place + row["delta"] + column for column in range(drafts + 1)]]
    else:
        live = [int(wanted > step) for step in range(drafts)]
        starts = [place + step for step in range(drafts)]
        columns = [[start + row["delta"]] for start in starts]
    return accepted, drawn[accepted], starts, live, columns


NAMES = ("tokens", "ids", "live", "start", "delta", "remaining", "most")
ROWS = [
    dict(zip(NAMES, values, strict=True))
    for values in (
        ([5, 6, 7], [1, 5, 6], 3, 10, 4, 9, 3),
        ([5, 6, 7], [1, 5, 6], 2, 63, 0, 9, 1),
        ([5, 6, 7], [1, 4, 6], 3, 0, -7, 3, 3),
        ([5, 6, 7], [1, 5, 6], 1, 9, 2, 2, 3),
        ([0, 0, 0], [0, 0, 0], 3, 8, 1, 5, 0),
        ([9, 8, 7], [3, 9, 1], 3, 7, 0, 5, 9),
    )
]


def verified(rows):
    names = ("start", "live", "delta", "remaining", "most")
    columns = [torch.tensor([row[name] for row in rows], dtype=I32) for name in names]
    return VerifiedRows(torch.tensor([row["ids"] for row in rows], dtype=I32).flatten(), *columns)


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_rows_settle_as_the_rule_says(ops, drafts, block):
    tokens = torch.tensor([row["tokens"] for row in ROWS], dtype=I32).flatten()
    broken = torch.arange(18) % 5 == 2
    rows = [row | {"broken": broken[3 * b : 3 * b + 3].tolist()} for b, row in enumerate(ROWS)]
    answer = VerifyAnswer(*(torch.full((n,), -9, dtype=I32) for n in (18, 18, 6)))
    made = ops.settle_drafts(tokens, broken, verified(ROWS), answer, drafts, block)
    assert torch.equal(answer.tokens, tokens)
    assert torch.equal(answer.broken, broken.to(I32))
    assert made.last.dtype == torch.int64
    kinds = [made.tokens, made.starts, made.live, made.positions]
    assert all(kind.dtype == I32 for kind in kinds)
    places, wide = (1, drafts + 1) if block else (drafts, 1)
    assert made.positions.shape == (places, 3, 6 * wide)
    for b, row in enumerate(rows):
        accepted, token, starts, live, columns = spelt_out(row, drafts, block)
        assert answer.accepted[b] == accepted
        assert made.tokens[b] == token
        assert made.last[b] == 3 * b + accepted
        assert made.starts[:, b].tolist() == starts
        assert made.live[:, b].tolist() == live
        for axis in range(3):
            found = made.positions[:, axis].view(places, 6, wide)[:, b]
            assert found.tolist() == columns
