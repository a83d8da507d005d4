"""Resolving rows, accepting and keeping drafts, folds: Triton against the reference, to the bit."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from harness import Guarded, GuardedAllocations, guarded

from ninfer_core.ops.contracts.values import TokenCounts
from ninfer_core.ops.contracts.verifying import (
    DRAFTS,
    FoldRows,
    Folds,
    GivenRows,
    ResolvedRows,
    SettledRows,
    VerifyAnswer,
)
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.reference import OPS as REFERENCE

verifying = pytest.importorskip("ninfer_ops_triton.verifying")
I32, I64 = torch.int32, torch.int64
LANES, VOCAB = 9, 6
SHAPES = [(4, 1, 3), (1, 2, 1), (3, 4, 3), (8, 16, 15), (5, 3, 7)]
"""Sequences, columns of each, and drafts made next."""


def lanes_of(operands, count):
    order = torch.randperm(LANES, generator=operands.generator)[:count]
    return order.to(I32).to(operands.device)


def resolved(operands, count, width):
    unread = operands.integers(9, count * width, dtype=I64)
    starts, remaining, most = (operands.integers(high, count) for high in (300, 8, width + 2))
    return ResolvedRows(
        ids=operands.integers(2, count * width), starts=starts,
        live=operands.integers(width, count) + 1, deltas=operands.integers(9, count) - 4,
        tables=lanes_of(operands, count), remaining=remaining, most=most,
        places=operands.integers(50, count), slots=unread, positions=unread, lanes=unread,
        chosen=unread,
    )  # fmt: skip


def drawn(operands, rows, count, width):
    """Few different tokens, so that drafts are often right."""
    following = torch.cat(
        [rows.ids.view(count, width)[:, 1:], torch.ones_like(rows.ids[:count]).view(-1, 1)], 1
    )
    return following.flatten() ^ (operands.integers(5, count * width) == 0).to(I32)


class Places:
    """Guarded memory for the fields of a dataclass of tensors, and what the reference fills."""

    def __init__(self, kind: Any, shapes: dict[str, tuple[tuple[int, ...], Any]], device: Any):
        self._kind = kind
        self._guards = {name: Guarded(*of, device) for name, of in shapes.items()}
        self.made = kind(**{name: guard.tensor for name, guard in self._guards.items()})
        self.expected = kind(
            **{name: guard.tensor.cpu().clone() for name, guard in self._guards.items()}
        )

    def check(self) -> None:
        for guard in self._guards.values():
            guard.check()
        assert_same(self._kind, self.made, self.expected)


def assert_same(kind, found, wanted):
    for field in fields(kind):
        one, two = getattr(found, field.name).cpu(), getattr(wanted, field.name)
        assert one.dtype == two.dtype, field.name
        assert torch.equal(one, two), field.name


def on_host(kind, value):
    return kind(**{field.name: getattr(value, field.name).cpu() for field in fields(kind)})


def answer_places(count, width, device):
    rows = (count * width,), I32
    shapes = {"tokens": rows, "broken": rows, "accepted": ((count,), I32)}
    return Places(VerifyAnswer, shapes, device)


def settled_places(count, drafts, block, device):
    places, wide = (1, drafts + 1) if block else (drafts, 1)
    several = ((places, count), I32)
    shapes = {
        "tokens": ((count,), I32), "last": ((count,), I64), "starts": several, "live": several,
        "tables": several, "positions": ((3, places, count * wide), I32),
    }  # fmt: skip
    return Places(SettledRows, shapes, device)


def kept_words(drafts, device):
    """Guarded memory, and a copy for the reference."""
    kept = Guarded((LANES, DRAFTS + drafts), I32, device)
    return kept, kept.tensor.cpu().clone()


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize(("count", "width", "drafts"), SHAPES)
def test_rows_settle_as_in_the_reference(operands, count, width, drafts, block, counted):
    rows, device = resolved(operands, count, width), operands.device
    tokens = drawn(operands, rows, count, width)
    broken = operands.integers(4, count * width) == 0
    answer, places = (
        answer_places(count, width, device),
        settled_places(count, drafts, block, device),
    )
    kept, kept_expected = kept_words(drafts, device)
    generated = guarded(operands.integers(3, LANES, VOCAB))
    counts = TokenCounts(generated.tensor, generated.tensor > 9) if counted else None
    host = TokenCounts(generated.tensor.cpu().clone(), generated.tensor.cpu() > 9)
    verifying.settle_drafts(
        tokens, broken, rows, answer.made, places.made, kept.tensor, block, counts
    )
    REFERENCE.settle_drafts(
        tokens.cpu(), broken.cpu(), on_host(ResolvedRows, rows), answer.expected, places.expected,
        kept_expected, block, host if counted else None,
    )  # fmt: skip
    answer.check()
    places.check()
    kept.check()
    generated.check()
    assert torch.equal(kept.tensor.cpu(), kept_expected)
    assert torch.equal(generated.tensor.cpu(), host.generated)


@pytest.mark.parametrize(("count", "width", "drafts"), SHAPES)
def test_rows_resolve_as_in_the_reference(operands, count, width, drafts):
    most = max(width - 1, drafts)
    columns = [operands.integers(high, count) for high in (300, width, 9, 40, 8, 4)]
    starts, live, deltas, slots, remaining, worth = columns
    given = GivenRows(
        operands.integers(99, count * width), starts, live + 1, deltas - 4, slots,
        lanes_of(operands, count), remaining, worth, operands.integers(3, count),
        operands.integers(50, count),
    )  # fmt: skip
    kept = operands.integers(1000, LANES, DRAFTS + most)
    tokens = operands.integers(50, LANES)
    with GuardedAllocations():
        made = verifying.resolve_rows(given, kept, tokens)
    wanted = REFERENCE.resolve_rows(on_host(GivenRows, given), kept.cpu(), tokens.cpu())
    assert_same(ResolvedRows, made, wanted)


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize(("count", "made"), [(1, 3), (3, 1), (8, 3), (5, 2)])
def test_drafts_are_kept_as_in_the_reference(operands, count, made, block):
    device, most = operands.device, 3
    places = settled_places(count, most, block, device)
    for kind in (places.made, places.expected):
        kind.tables.copy_(lanes_of(operands, count).expand_as(kind.tables))
    places.made.live.copy_(operands.integers(2, *places.made.live.shape))
    for field in ("live", "tables"):
        getattr(places.expected, field).copy_(getattr(places.made, field))
    kept, kept_expected = kept_words(most, device)
    answer = Guarded((count, most), I32, device)
    answer_expected = answer.tensor.cpu().clone()
    drafts = operands.integers(99, count, most)[:, :made]
    verifying.keep_drafts(drafts, places.made, kept.tensor, answer.tensor, block)
    REFERENCE.keep_drafts(drafts.cpu(), places.expected, kept_expected, answer_expected, block)
    places.check()
    kept.check()
    answer.check()
    assert torch.equal(kept.tensor.cpu(), kept_expected)
    assert torch.equal(answer.tensor.cpu(), answer_expected)


@pytest.mark.parametrize("width", [0, 5, 1024, 1300])
def test_folds_resolve_as_in_the_reference(operands, width):
    """Rows that the host knows and those that it does not; without hidden rows too (0)."""
    count, device = 4, operands.device
    kept = operands.integers(20, LANES, DRAFTS + 3)
    unknown = operands.integers(2, count) == 0
    targets = torch.randperm(12, generator=operands.generator)[:count].to(I32).to(device)
    rows = FoldRows(
        operands.integers(12, count), targets, lanes_of(operands, count),
        torch.where(unknown, -1, operands.integers(4, count)),
        torch.where(unknown, -1, operands.integers(20, count)),
    )  # fmt: skip
    hidden = operands.normal(20, width, dtype=torch.bfloat16) if width else None
    pool = guarded(operands.normal(12, width, dtype=torch.bfloat16)) if width else None
    pool_expected = None if pool is None else pool.tensor.cpu().clone()
    with GuardedAllocations():
        made = verifying.resolve_folds(rows, kept, hidden, None if pool is None else pool.tensor)
    host = None if hidden is None else hidden.cpu()
    wanted = REFERENCE.resolve_folds(on_host(FoldRows, rows), kept.cpu(), host, pool_expected)
    assert_same(Folds, made, wanted)
    if pool is not None:
        pool.check()
        assert torch.equal(pool.tensor.cpu(), pool_expected)


def test_what_does_not_fit_is_refused(operands):
    rows, device = resolved(operands, 2, 2), operands.device
    tokens = drawn(operands, rows, 2, 2)
    answer = answer_places(2, 2, device).made
    places, kept = settled_places(2, 3, False, device).made, operands.integers(9, LANES, DRAFTS + 3)
    with pytest.raises(OpError, match="3 rows of 2 sequences"):
        verifying.settle_drafts(tokens[:3], tokens[:3] > 0, rows, answer, places, kept, False)
    with pytest.raises(OpError, match="places for one draft or more"):
        verifying.settle_drafts(tokens, tokens > 0, rows, answer, places, kept, True)
    with pytest.raises(OpError, match="K at least 3"):
        verifying.settle_drafts(tokens, tokens > 0, rows, answer, places, kept[:, :-1], False)
    narrow = operands.integers(9, 2, 2)
    with pytest.raises(OpError, match="up to 3 drafts of a row lie side by side"):
        verifying.keep_drafts(narrow, places, kept, narrow, False)
    pool, hidden = operands.normal(4, 6), operands.normal(4, 5)
    with pytest.raises(OpError, match="must be alike"):
        verifying.resolve_folds(FoldRows(*[rows.starts] * 5), kept, hidden, pool)
