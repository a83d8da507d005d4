"""The joint law of three tokens under every sampling setting, with drafts and without."""

from __future__ import annotations

import itertools

import pytest
import torch

from ninfer_core.ops.contracts.values import DraftLaw, DrawPurpose, TokenCounts, TokenMasks
from ninfer_core.ops.reference.rng import uniform

V, K = 6, 3
ROUNDS = 200_000
HISTORIES = torch.tensor(list(itertools.product(range(V), repeat=K)), dtype=torch.int32)
PLACES = torch.tensor([V**2, V, 1])
SEEDS = torch.arange(ROUNDS)

SETTINGS = {
    "cool": {"temperature": 0.6},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.75},
    "min_p": {"min_p": 0.25, "temperature": 1.3},
    "penalties": {"presence": 0.7, "frequency": 0.6, "repetition": 1.4},
    "bias": {"bias_ids": (1, 4), "bias": (1.5, -2.0), "banned_ids": (2,), "banned_before": 102},
    "all": {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "presence": 0.5},
}
MASKED = ("cool", "all")


class Target:
    """Logits for every history of up to K tokens, masks that depend on its last token."""

    def __init__(self, operands, asked, masked: bool) -> None:
        self.asked = asked
        self.masked = masked
        self.raw = [1.4 * operands.normal(*[V] * (w + 1)) for w in range(K + 1)]

    def logits(self, history) -> torch.Tensor:
        return self.raw[len(history)][tuple(history)]

    def mask(self, history) -> int:
        """Allowed tokens as bits: all but the one behind the last."""
        return 0b111111 & ~(1 << ((history[-1] + 1) % V)) if history else 0b101111

    def masks(self, histories) -> TokenMasks | None:
        if not self.masked:
            return None
        words = torch.tensor([[self.mask(h)] for h in histories], dtype=torch.int32)
        return TokenMasks(words, torch.ones(len(histories), dtype=torch.bool))


def plain_laws(ops, target, settings) -> list[torch.Tensor]:
    """Token by token, each after its history was counted: [V] * w + [V] for every w."""
    laws = []
    for width in range(K + 1):
        histories = list(itertools.product(range(V), repeat=width))
        generated = torch.zeros(len(histories), V, dtype=torch.int32)
        for row, history in enumerate(histories):
            for token in history:
                generated[row, token] += 1
        counts = TokenCounts(generated, torch.zeros(len(histories), V, dtype=torch.bool))
        processed = ops.process_logits(
            torch.stack([target.logits(h) for h in histories]),
            settings(*[target.asked] * len(histories)),
            counts,
            torch.arange(len(histories)),
            torch.full((len(histories),), 100 + width, dtype=torch.int32),
            None,
            target.masks(histories),
        )
        law = ops.sampling_law(processed, settings(*[target.asked] * len(histories)))
        laws.append(law.view(*[V] * width, V))
    return laws


def verify_laws(ops, target, settings) -> torch.Tensor:
    """As rows of a round: [V ** K, K + 1, V], row w of a sequence after its drafts 0 .. w - 1."""
    rows = [tuple(h[:w]) for h in HISTORIES.tolist() for w in range(K + 1)]
    chosen = settings(*[target.asked] * len(HISTORIES))
    zeros = torch.zeros(len(HISTORIES), V, dtype=torch.int32)
    processed = ops.process_logits(
        torch.stack([target.logits(row) for row in rows]),
        chosen,
        TokenCounts(zeros, zeros.bool()),
        torch.arange(len(HISTORIES)),
        (100 + torch.arange(K + 1, dtype=torch.int32)).repeat(len(HISTORIES)),
        HISTORIES,
        target.masks(rows),
    )
    return ops.sampling_law(processed, chosen).view(len(HISTORIES), K + 1, V)


def proposals(operands) -> tuple[torch.Tensor, torch.Tensor]:
    """Drafts i32[rounds, K] drawn each after those before it, and their laws."""
    laws = [torch.softmax(operands.normal(*[V] * (w + 1)), -1) for w in range(K)]
    drafts, rows = torch.empty(ROUNDS, 0, dtype=torch.int64), []
    for column, table in enumerate(laws):
        law = table[tuple(drafts.T)].expand(ROUNDS, V)
        number = uniform(SEEDS, torch.full((ROUNDS,), 100 + column), DrawPurpose.DRAFT)
        sums = law.double().cumsum(-1)
        drawn = torch.searchsorted(sums, number.double().unsqueeze(1), right=True).clamp_max(V - 1)
        drafts = torch.cat([drafts, drawn], 1)
        rows.append(law)
    return drafts.int(), torch.stack(rows, 1)


def three_tokens(ops, laws, plain, drafts, q) -> torch.Tensor:
    """A round's tokens, then draws of the plain law until there are three."""
    support = torch.arange(V, dtype=torch.int32).expand(ROUNDS, K, V)
    outcome = ops.accept_drafts(
        laws[(drafts.long() * PLACES).sum(1)].flatten(0, 1),
        drafts,
        torch.full((ROUNDS,), K, dtype=torch.int32),
        None if q is None else DraftLaw(support, q),
        SEEDS,
        (100 + torch.arange(K + 1, dtype=torch.int32)).repeat(ROUNDS),
    )
    accepted = outcome.accepted.long()
    tokens = torch.cat([drafts, drafts[:, :1]], 1).long()
    tokens[torch.arange(ROUNDS), accepted] = outcome.tokens.long()
    generator = torch.Generator().manual_seed(1)
    for column in range(1, K):
        law = plain[column][tuple(tokens[:, :column].T)]
        fresh = torch.multinomial(law, 1, generator=generator).squeeze(1)
        tokens[:, column] = torch.where(accepted < column, fresh, tokens[:, column])
    return tokens[:, :K]


def p_value(plain, tokens) -> float:
    """Of chi-square against the exact joint law; cells that expect fewer than 5 are pooled."""
    joint = torch.ones((), dtype=torch.float64)
    for law in plain[:K]:
        joint = joint.unsqueeze(-1) * (law.double() / law.double().sum(-1, keepdim=True))
    expected = joint.flatten() * ROUNDS
    observed = torch.bincount((tokens * PLACES).sum(1), minlength=V**K).double()
    impossible = expected == 0
    assert not observed[impossible].any()
    rare = (expected < 5) & ~impossible
    cells = [(observed[~rare & ~impossible], expected[~rare & ~impossible])]
    if float(expected[rare].sum()) > 0:
        cells.append((observed[rare].sum()[None], expected[rare].sum()[None]))
    chi_square = sum(float(((o - e) ** 2 / e).sum()) for o, e in cells)
    freedom = sum(len(e) for _, e in cells) - 1
    halves = torch.tensor([freedom / 2, chi_square / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


CASES = [(name, False) for name in SETTINGS] + [(name, True) for name in MASKED]


@pytest.mark.parametrize(("name", "masked"), CASES)
def test_the_joint_law_is_that_of_plain_decoding(ops, operands, settings, name, masked) -> None:
    target = Target(operands, SETTINGS[name], masked)
    plain, laws = plain_laws(ops, target, settings), verify_laws(ops, target, settings)
    drafts, q = proposals(operands)
    assert p_value(plain, three_tokens(ops, laws, plain, drafts, None)) > 1e-6
    assert p_value(plain, three_tokens(ops, laws, plain, drafts, q)) > 1e-6


def test_wrong_rules_are_seen(ops, operands, settings) -> None:
    """The check has power: drafts taken for drawn from another law, penalties of one history for
    all rows, and every draft taken."""
    target = Target(operands, SETTINGS["penalties"], masked=False)
    plain, laws = plain_laws(ops, target, settings), verify_laws(ops, target, settings)
    drafts, q = proposals(operands)
    best = q.argmax(-1, keepdim=True)
    sure = torch.zeros_like(q).scatter_(2, best, 1.0)
    for wrong in (q.flip(-1), sure):
        assert p_value(plain, three_tokens(ops, laws, plain, drafts, wrong)) < 1e-12
    forgetful = Target.__new__(Target)
    forgetful.asked, forgetful.masked, forgetful.raw = {}, False, target.raw
    stale = verify_laws(ops, forgetful, settings)
    assert p_value(plain, three_tokens(ops, stale, plain, drafts, q)) < 1e-12
    assert p_value(plain, drafts.long()) < 1e-12
