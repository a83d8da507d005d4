"""Speculative acceptance: exact joint laws, and the tokens of plain decoding."""

from __future__ import annotations

import itertools

import pytest
import torch

from ninfer_core.ops.contracts.values import DraftLaw, DrawPurpose
from ninfer_core.ops.reference.rng import uniform

V, K = 6, 3
ROUNDS = 60_000


def conditional_laws(operands, spread):
    """A law for every history of up to K tokens, f32 by length: [V] * length + [V]."""
    return [
        torch.softmax(operands.normal(*[V] * (length + 1)) * spread, dim=-1)
        for length in range(K + 1)
    ]


def joint(laws, length):
    """The probability of every sequence of ``length`` tokens, fp64[V ** length]."""
    total = torch.ones((), dtype=torch.float64)
    for law in laws[:length]:
        total = total.unsqueeze(-1) * law.double()
    return total.flatten()


def along(laws, drafts):
    """Laws of rows 0..K of each round, given its drafts: [rounds * (K + 1), V]."""
    columns = [
        laws[w][tuple(drafts[:, :w].long().T)].expand(drafts.shape[0], V) for w in range(K + 1)
    ]
    return torch.stack(columns, dim=1).reshape(-1, V)


def propose(laws):
    """Drafts drawn from ``laws`` by the draft numbers of their positions, and those laws."""
    drafts = torch.empty(ROUNDS, 0, dtype=torch.int64)
    rows = []
    for column in range(K):
        law = laws[column][tuple(drafts.T)].expand(ROUNDS, V)
        numbers = uniform(
            torch.arange(ROUNDS), torch.full((ROUNDS,), 100 + column), DrawPurpose.DRAFT
        )
        drawn = torch.searchsorted(
            law.double().cumsum(-1), numbers.double().unsqueeze(1), right=True
        )
        drafts = torch.cat([drafts, drawn.clamp_max(V - 1)], dim=1)
        rows.append(law)
    return drafts.int(), torch.stack(rows, dim=1)


def positions(rounds=ROUNDS):
    return (100 + torch.arange(K + 1, dtype=torch.int32)).repeat(rounds)


def accept(ops, laws, drafts, q, live=K):
    support = torch.arange(V, dtype=torch.int32).expand(ROUNDS, K, V)
    return ops.accept_drafts(
        along(laws, drafts),
        drafts,
        torch.full((ROUNDS,), live, dtype=torch.int32),
        None if q is None else DraftLaw(support, q),
        torch.arange(ROUNDS),
        positions(),
    )


def first_three(laws, drafts, outcome):
    """Three tokens of each round: drafts taken, the outcome's token, then draws from the target."""
    tokens = torch.cat([drafts, drafts[:, :1]], dim=1).long()
    accepted = outcome.accepted.long()
    tokens[torch.arange(ROUNDS), accepted] = outcome.tokens.long()
    generator = torch.Generator().manual_seed(1)
    for column in range(1, K):
        law = laws[column][tuple(tokens[:, :column].T)]
        fresh = torch.multinomial(law, 1, generator=generator).squeeze(1)
        tokens[:, column] = torch.where(accepted < column, fresh, tokens[:, column])
    return tokens[:, :K]


def deviation(laws, tokens):
    """Standard deviations by which chi-square of the joint law exceeds its mean."""
    index = (tokens * torch.tensor([V**2, V, 1])).sum(1)
    expected = joint(laws, K) * ROUNDS
    observed = torch.bincount(index, minlength=V**K).double()
    rare = expected < 5
    cells = [(observed[~rare], expected[~rare])]
    if rare.any():
        cells.append((observed[rare].sum()[None], expected[rare].sum()[None]))
    chi_square = sum(float(((o - e) ** 2 / e).sum()) for o, e in cells)
    freedom = sum(len(e) for _, e in cells) - 1
    return (chi_square - freedom) / (2 * freedom) ** 0.5


def test_kept_q_preserves_the_joint_law(ops, operands):
    target, draft = conditional_laws(operands, 1.0), conditional_laws(operands, 1.0)
    drafts, q = propose(draft)
    outcome = accept(ops, target, drafts, q)
    assert deviation(target, first_three(target, drafts, outcome)) < 6
    overlap = float(torch.minimum(target[0], draft[0]).sum())
    rate = float((outcome.accepted > 0).float().mean())
    assert rate == pytest.approx(overlap, abs=6 * (0.25 / ROUNDS) ** 0.5)


def test_one_hot_drafts_preserve_the_joint_law(ops, operands):
    target, draft = conditional_laws(operands, 1.0), conditional_laws(operands, 1.0)
    drafts, _ = propose(draft)
    assert deviation(target, first_three(target, drafts, accept(ops, target, drafts, None))) < 6


def test_a_wrong_q_is_seen(ops, operands):
    """The check has power: drafts of one law, accepted as if they came from another."""
    target, draft = conditional_laws(operands, 1.0), conditional_laws(operands, 1.0)
    drafts, q = propose(draft)
    outcome = accept(ops, target, drafts, q.flip(-1))
    assert deviation(target, first_three(target, drafts, outcome)) > 50


def test_one_hot_rounds_emit_what_plain_decoding_draws(ops, operands):
    target = conditional_laws(operands, 1.5)
    drafts, _ = propose(conditional_laws(operands, 1.5))
    outcome = accept(ops, target, drafts, None)
    for row in range(300):
        plain = []
        for column in range(int(outcome.accepted[row]) + 1):
            law = target[column][tuple(plain)].double()
            place = torch.tensor([100 + column])
            number = float(uniform(torch.tensor(row), place, DrawPurpose.DECODE))
            sums = law.cumsum(0)
            plain.append(int((sums <= number * float(sums[-1])).sum()))
        emitted = [*drafts[row, : outcome.accepted[row]].tolist(), int(outcome.tokens[row])]
        assert emitted == plain


@pytest.mark.parametrize("kept", [True, False], ids=["kept q", "one-hot"])
@pytest.mark.parametrize("live", range(K + 1))
def test_greedy_rows_take_the_leading_matches(ops, kept, live):
    histories = list(itertools.product(range(2), repeat=K))
    best = torch.tensor([1, 0, 1, 1])
    drafts = torch.tensor(histories, dtype=torch.int32)
    laws = torch.nn.functional.one_hot(best, V).float().repeat(len(histories), 1)
    q = None
    if kept:
        q = DraftLaw(drafts.unsqueeze(2), torch.ones(len(histories), K, 1))
    outcome = ops.accept_drafts(
        laws,
        drafts,
        torch.full((len(histories),), live, dtype=torch.int32),
        q,
        torch.zeros(len(histories), dtype=torch.int64),
        positions(len(histories)),
    )
    for row, history in enumerate(histories):
        matches = 0
        while matches < live and history[matches] == int(best[matches]):
            matches += 1
        assert int(outcome.accepted[row]) == matches
        assert int(outcome.tokens[row]) == int(best[matches])


def test_a_forbidden_draft_is_never_taken(ops):
    laws = torch.full((K + 1, V), 0.2)
    laws[:, 4] = 0
    drafts = torch.full((1, K), 4, dtype=torch.int32)
    for seed in range(200):
        for q in (None, DraftLaw(drafts.unsqueeze(2), torch.full((1, K, 1), 1e-30))):
            outcome = ops.accept_drafts(
                laws,
                drafts,
                torch.tensor([K], dtype=torch.int32),
                q,
                torch.tensor([seed]),
                positions(1),
            )
            assert int(outcome.accepted) == 0
            assert int(outcome.tokens) != 4


def test_without_a_residual_the_target_law_is_drawn(ops):
    """q covers p wholly, so that a rejection leaves no mass: the correction comes from p."""
    law = torch.tensor([0.5, 0.5, 0, 0, 0, 0]).repeat(K + 1, 1)
    drafts = torch.full((1, K), 5, dtype=torch.int32)
    ids = torch.tensor([0, 1, 5, -1], dtype=torch.int32).expand(1, K, 4)
    q = DraftLaw(ids, torch.tensor([0.5, 0.5, 0.1, 9.0]).expand(1, K, 4))
    tokens = set()
    for seed in range(50):
        live = torch.tensor([K], dtype=torch.int32)
        outcome = ops.accept_drafts(law, drafts, live, q, torch.tensor([seed]), positions(1))
        assert int(outcome.accepted) == 0
        tokens.add(int(outcome.tokens))
    assert tokens == {0, 1}
