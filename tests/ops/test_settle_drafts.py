"""Accepting drafts and placing the next ones, against the rule spelt out row by row."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from ninfer_core.ops.contracts.values import TokenCounts
from ninfer_core.ops.contracts.verifying import (
    DRAFTS,
    LIVE,
    ResolvedRows,
    SettledRows,
    VerifyAnswer,
)

I32, I64 = torch.int32, torch.int64
UNTOUCHED = -9
LANES, VOCAB = 8, 10


@dataclass(frozen=True)
class Case:
    """A sequence of three columns."""

    tokens: tuple[int, int, int]
    ids: tuple[int, int, int]
    live: int
    start: int
    delta: int
    remaining: int
    most: int
    lane: int
    place: int


CASES = (
    Case((5, 6, 7), (1, 5, 6), 3, 10, 4, 9, 3, 4, 0),
    Case((5, 6, 7), (1, 5, 6), 2, 63, 0, 9, 1, 0, 3),
    Case((5, 6, 7), (1, 4, 6), 3, 0, -7, 3, 3, 7, 6),
    Case((5, 6, 7), (1, 5, 6), 1, 9, 2, 2, 3, 2, 9),
    Case((0, 0, 0), (0, 0, 0), 3, 8, 1, 5, 0, 1, 30),
    Case((9, 8, 7), (3, 9, 1), 3, 7, 0, 5, 9, 3, 33),
)


def accepted_of(case: Case, broken: list[bool]) -> int:
    accepted = 0
    while accepted + 1 < case.live and case.tokens[accepted] == case.ids[accepted + 1]:
        if broken[0] or broken[accepted + 1]:
            break
        accepted += 1
    return accepted


def drafting_of(
    case: Case, accepted: int, drafts: int, block: bool
) -> tuple[list[int], list[int], list[list[int]]]:
    """Starts, live rows and columns of the places where drafts are made."""
    place = case.start + accepted + 1
    wanted = max(0, min(case.remaining - accepted - 2, case.most, drafts))
    if block:
        columns = [place + case.delta + column for column in range(drafts + 1)]
        return [place], [wanted + 1 if wanted else 0], [columns]
    starts = [place + step for step in range(drafts)]
    live = [int(wanted > step) for step in range(drafts)]
    return starts, live, [[start + case.delta] for start in starts]


def resolved(cases: tuple[Case, ...]) -> ResolvedRows:
    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(case, name) for case in cases], dtype=I32)

    unread = torch.full((3 * len(cases),), 77, dtype=I64)
    return ResolvedRows(
        ids=column("ids").flatten(), starts=column("start"), live=column("live"),
        deltas=column("delta"), tables=column("lane"), remaining=column("remaining"),
        most=column("most"), places=column("place"), slots=unread, positions=unread, lanes=unread,
        chosen=unread,
    )  # fmt: skip


def settled(count: int, drafts: int, block: bool) -> SettledRows:
    places, wide = (1, drafts + 1) if block else (drafts, 1)

    def empty(*shape: int, dtype: torch.dtype = I32) -> torch.Tensor:
        return torch.full(shape, UNTOUCHED, dtype=dtype)

    several = [empty(places, count) for _ in range(3)]
    return SettledRows(
        empty(count), empty(count, dtype=I64), *several, empty(3, places, count * wide)
    )


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_rows_settle_as_the_rule_says(ops, drafts, block):
    tokens = torch.tensor([case.tokens for case in CASES], dtype=I32).flatten()
    broken = torch.arange(18) % 5 == 2
    answer = VerifyAnswer(*(torch.full((n,), UNTOUCHED, dtype=I32) for n in (18, 18, 6)))
    made, kept = settled(6, drafts, block), torch.full((LANES, DRAFTS + 3), UNTOUCHED, dtype=I32)
    counts = TokenCounts(torch.zeros(LANES, VOCAB, dtype=I32), torch.zeros(LANES, VOCAB) > 0)
    ops.settle_drafts(tokens, broken, resolved(CASES), answer, made, kept, block, counts)
    assert torch.equal(answer.tokens, tokens)
    assert torch.equal(answer.broken, broken.to(I32))
    counted = torch.zeros_like(counts.generated)
    wide = drafts + 1 if block else 1
    for b, case in enumerate(CASES):
        accepted = accepted_of(case, broken[3 * b : 3 * b + 3].tolist())
        starts, live, columns = drafting_of(case, accepted, drafts, block)
        token, place = case.tokens[accepted], case.place + accepted
        assert answer.accepted[b] == accepted
        assert made.tokens[b] == token
        assert made.last[b] == place
        assert made.starts[:, b].tolist() == starts
        assert made.live[:, b].tolist() == live
        assert made.tables[:, b].tolist() == [case.lane] * len(starts)
        for axis in range(3):
            assert made.positions[axis].view(len(starts), 6, wide)[:, b].tolist() == columns
        words = [token, starts[0], case.remaining - accepted - 1, accepted + 1, place, 1]
        assert kept[case.lane].tolist() == [*words, *[UNTOUCHED] * 3]
        for taken in case.tokens[: accepted + 1]:
            counted[case.lane, taken] += 1
    assert torch.equal(counts.generated, counted)
    assert (kept[[5, 6]] == UNTOUCHED).all()


def test_rows_without_counts_count_nothing(ops):
    tokens = torch.tensor([case.tokens for case in CASES], dtype=I32).flatten()
    answer = VerifyAnswer(*(torch.zeros(n, dtype=I32) for n in (18, 18, 6)))
    kept = torch.zeros(LANES, DRAFTS + 1, dtype=I32)
    ops.settle_drafts(
        tokens, tokens < 0, resolved(CASES), answer, settled(6, 1, False), kept, False
    )
    assert answer.accepted.tolist() == [2, 1, 0, 0, 2, 1]


@pytest.mark.parametrize(("block", "live"), [(False, [3, 2, 1]), (True, [2, 1, 1])])
def test_drafts_are_kept_with_as_many_rows_as_are_live(ops, block, live):
    """Three sequences: a chain has 2, 1 and 0 live places, a block 2, 1 and 0 live columns."""
    places = torch.tensor([[2, 1, 0]] if block else [[1, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=I32)
    made = settled(3, 3, block)
    made.live.copy_(places)
    made.tables.copy_(torch.tensor([5, 0, 2], dtype=I32).expand_as(made.tables))
    kept = torch.full((6, DRAFTS + 3), UNTOUCHED, dtype=I32)
    answer = torch.full((3, 3), UNTOUCHED, dtype=I32)
    drafts = torch.tensor([[11, 12, 13], [21, 22, 23], [31, 32, 33]], dtype=I32)[:, :2]
    ops.keep_drafts(drafts, made, kept, answer, block)
    assert answer.tolist() == [[11, 12, UNTOUCHED], [21, 22, UNTOUCHED], [31, 32, UNTOUCHED]]
    expected = torch.full_like(kept, UNTOUCHED)
    for lane, rows, row in zip((5, 0, 2), live, drafts.tolist(), strict=True):
        expected[lane, LIVE] = rows
        expected[lane, DRAFTS : DRAFTS + 2] = torch.tensor(row, dtype=I32)
    assert torch.equal(kept, expected)
