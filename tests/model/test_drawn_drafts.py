"""Drafts that are drawn at a request's temperature: their laws, and the law of what comes out."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.contract.speculation import Proposal
from ninfer_core.ops.contracts.values import Candidates, DrawPurpose
from ninfer_core.ops.drawn_drafts import draw, law_of
from ninfer_core.ops.reference import OPS
from ninfer_core.ops.reference.rng import uniform
from ninfer_qwen3_5.program.drafting import Drafting
from ninfer_qwen3_5.program.drawn_drafts import DraftLaws
from ninfer_spec_dflash.config import DFlashConfig
from ninfer_spec_mtp.drafter import MtpDrafter
from tests.model.block_drafters import MASK, Formula, bind_block, published
from tests.model.checkpoint_driver import checkpoint_driver, prompt
from tests.model.drafters import BACKENDS, cache_of, drafting, unscripted
from tests.model.scripted_costs import free
from tests.model.test_block_drafters import Recorded
from tests.model.test_parity import prompts

DRAWN = SamplingParams(temperature=0.8, seed=7)


def drawing(case, drafter, most: int) -> Drafting:
    return replace(free(drafting(case, drafter, most)), draws=True)


def chosen(ids: torch.Tensor, probs: torch.Tensor, seed: int, position: int) -> int:
    """What the keyed number of a draft takes of a law, computed anew."""
    number = uniform(torch.tensor([seed]), torch.tensor([position]), DrawPurpose.DRAFT)
    place = int((probs.double().cumsum(0) <= number.double() * probs.double().sum()).sum())
    return int(ids[place])


class Kept(Recorded):
    """Keeps the last proposal."""

    def propose(self, ids, rows, caches, places, drawing=None):
        self.made = super().propose(ids, rows, caches, places, drawing)
        self.asked = drawing
        return self.made


SCALED = {"output_multiplier": 1.9, "final_logit_softcapping": 2.0}


@pytest.mark.parametrize(
    ("kind", "units", "nested"),
    [
        ("dflash", "eager", {}),
        ("dflash", "queued", SCALED),
        ("dflash2", "eager", SCALED),
        ("dflash2", "queued", {}),
    ],
)
def test_drafts_are_drawn_from_the_law_that_is_kept(build_case, kind, units, nested) -> None:
    """``softmax(score / temperature)`` over 16 candidates: DFlash's logits, or DFlash2's scores
    given the token drawn in the row before; logits as they were trained on."""
    case = build_case("tied")
    config = DFlashConfig.from_json(published(kind, nested=nested))
    drafter = Kept(config)
    formula = Formula(case, config, bind_block(case, drafter))
    asked = prompts(81, [40])[0]
    draft = replace(free(Drafting(drafter, 4)), draws=True)
    driver = checkpoint_driver(case.model, units, draft, max_concurrency=1)
    row = driver.begin(prompt(asked), sampling=DRAWN, max_new_tokens=40)
    driver.prefill(row)
    for _ in range(3):
        driver.decode([row])
        tokens = [*asked, *row.tokens]
        drafts, law = list(driver.record(row).drafts), drafter.made.q
        assert law.probs.shape == (1, 4, 64)
        rows, logits = formula.rows(tokens, len(drafts)), formula.logits(tokens, len(drafts))
        logits[:, MASK] = -torch.inf
        before = tokens[-1]
        for place, draft_token in enumerate(drafts):
            assert not law.probs[0, place, 16:].any()
            ids, probs = law.ids[0, place, :16], law.probs[0, place, :16]
            assert set(ids.tolist()) == set(logits[place].topk(16).indices.tolist())
            scores = logits[place][ids.long()]
            if nested:
                scores = 2.0 * (1.9 * scores / 2.0).tanh()
            if config.selector is not None:
                scores = scores + _pairs(formula, rows[place], before, ids)
            expected = (scores / 0.8).softmax(0)
            torch.testing.assert_close(probs.double(), expected, rtol=0, atol=2e-3)
            assert draft_token == chosen(ids, probs, DRAWN.seed, len(tokens) + place)
            before = draft_token


def _pairs(formula: Formula, row: torch.Tensor, before: int, ids: torch.Tensor) -> torch.Tensor:
    weights = formula._weights
    feature = weights["candidate_selector.hidden_projection.weight"] @ row
    left = weights["candidate_selector.predecessor_codebook"][before] * feature
    return weights["candidate_selector.successor_codebook"][ids.long()] @ left


@pytest.mark.parametrize("backend", BACKENDS)
def test_greedy_rows_are_those_of_plain_decoding(build_case, backend) -> None:
    """Alone and beside rows whose drafts are drawn; what is drawn is the same on both kinds of
    units, and alone or not."""
    case = build_case("untied")
    asked, count = prompts(82, [20, 33, 50]), 24
    sampling = [SamplingParams(temperature=0.0, seed=0), DRAWN, replace(DRAWN, top_k=5, seed=3)]

    def answers(units: str, rows: list[int], draft: Drafting | None) -> list[list[int]]:
        driver = checkpoint_driver(case.model, units, draft, max_concurrency=3)
        begun = [
            driver.begin(prompt(asked[n]), sampling=sampling[n], lane=lane, max_new_tokens=count)
            for lane, n in enumerate(rows)
        ]
        for row in begun:
            driver.prefill(row)
        while running := [row for row in begun if len(row.tokens) < count]:
            driver.decode(running)
        return [row.tokens for row in begun]

    plain = answers("eager", [0, 1, 2], None)
    draft = drawing(case, unscripted(backend), 3)
    made = answers("eager", [0, 1, 2], draft)
    assert made[0] == plain[0]
    assert made[1] != plain[1]
    assert answers("queued", [0, 1, 2], draft) == made
    assert answers("late", [0, 1, 2], draft) == made
    assert [answers("eager", [n], draft)[0] for n in range(3)] == made


class Guesser(MtpDrafter):
    """Draws from a law of its own: at each position, of what may come there, shares that have
    nothing to do with the target's. ``lies`` keeps another law than the one it drew from."""

    def __init__(self, likely: dict[int, list[int]], *, lies: bool = False) -> None:
        super().__init__(cache_of())
        self._likely = likely
        self._lies = lies

    def propose(self, ids, rows, caches, places, drawing=None):
        super().propose(ids, rows, caches, places)
        starts, most = places[0].rows.starts.tolist(), len(places)
        positions = [start + 1 + step for start in starts for step in range(most)]
        listed = [self._listed(position) for position in positions]
        found = Candidates(
            torch.tensor(listed, dtype=torch.int32),
            torch.tensor([[math.log(1 + (7 * t) % 5) for t in row] for row in listed]),
        )
        if drawing is None:
            return Proposal(found.ids[:, 0].view(len(starts), most))
        tokens, law = draw(OPS, found, drawing, torch.tensor(positions, dtype=torch.int32))
        if self._lies:
            tokens = found.ids.gather(1, law.values.argmax(1, keepdim=True)).squeeze(1)
        return Proposal(tokens.view(len(starts), most), law_of(law, len(starts)))

    def _listed(self, position: int) -> list[int]:
        known = self._likely.get(position, [])
        return [*known, *(t for t in range(300, 320) if t not in known)][:8]


SUPPORT = SamplingParams(temperature=0.9, top_k=2, presence_penalty=1.5)
LENGTH, EMITTED, RUNS = 12, 3, 240


@torch.inference_mode()
def joint(case, exact_logits, asked: list[int]) -> dict[tuple[int, ...], float]:
    """The exact law of the first tokens, each of two: transformers' logits, and by hand the
    penalty, top-k and temperature."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(EMITTED):
        grown = {}
        for prefix, share in law.items():
            scores = exact_logits(case, [*asked, *prefix])[-1].clone()
            scores[list(set(prefix))] -= SUPPORT.presence_penalty
            best, ids = scores.topk(2)
            for p, token in zip((best / 0.9).softmax(0).tolist(), ids.tolist(), strict=True):
                grown[(*prefix, token)] = share * p
        law = grown
    return law


def chi_square(case, asked, law, drafter) -> tuple[float, int]:
    """Of what speculation emits for many seeds, and the accepted drafts among them."""
    driver = checkpoint_driver(
        case.model, "eager", drawing(case, drafter, EMITTED), max_concurrency=8, max_context=64
    )
    seen: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for batch in range(RUNS // 8):
        rows = [
            driver.begin(
                prompt(asked), sampling=replace(SUPPORT, seed=8 * batch + lane), lane=lane,
                max_new_tokens=8, logprobs=None,
            )
            for lane in range(8)
        ]  # fmt: skip
        for row in rows:
            driver.prefill(row)
        while running := [row for row in rows if len(row.tokens) < EMITTED]:
            before = sum(len(row.tokens) for row in running)
            driver.decode(running)
            accepted += sum(len(row.tokens) for row in running) - before - len(running)
        for row in rows:
            seen[tuple(row.tokens[:EMITTED])] += 1
            driver.finish(row)
    assert set(seen) <= set(law)
    return sum((seen[cell] - RUNS * p) ** 2 / (RUNS * p) for cell, p in law.items()), accepted


@pytest.fixture(scope="module")
def branching(build_case, exact_logits):
    """A prompt behind which nothing is nearly certain, its law, and what may come where."""
    case = build_case("tied")
    for seed in itertools.count(90):
        asked = prompts(seed, [LENGTH])[0]
        law = joint(case, exact_logits, asked)
        if min(law.values()) > 0.02:
            break
    likely: dict[int, list[int]] = {}
    for cell in law:
        for place, token in enumerate(cell):
            known = likely.setdefault(LENGTH + place, [])
            if token not in known:
                known.append(token)
    return case, asked, law, likely


def test_what_comes_out_has_the_law_of_plain_decoding(branching) -> None:
    """Seven degrees of freedom: 29.9 is exceeded once in 10,000."""
    case, asked, law, likely = branching
    statistic, accepted = chi_square(case, asked, law, Guesser(likely))
    assert accepted > RUNS / 8
    assert statistic < 29.9


def test_that_law_is_lost_with_a_law_that_drafts_were_not_drawn_from(branching) -> None:
    """The test above would see it."""
    case, asked, law, likely = branching
    statistic, _ = chi_square(case, asked, law, Guesser(likely, lies=True))
    assert statistic > 60


def test_small_configs_draw_too(build_case) -> None:
    """A selector of fewer candidates fills its law up with tokens that are none."""
    case = build_case("tied")
    config = DFlashConfig.from_json(published("dflash2", nested={"selector_top_k": 3}))
    drafter = Kept(config)
    bind_block(case, drafter)
    driver = checkpoint_driver(
        case.model, "eager", replace(free(Drafting(drafter, 2)), draws=True), max_concurrency=1
    )
    row = driver.begin(prompt([5, 6, 7]), sampling=DRAWN, max_new_tokens=9)
    driver.generate(row, 9)
    law = drafter.made.q
    assert (law.ids[:, :, 3:] == -1).all()
    assert (law.probs[:, :, 3:] == 0).all()


def test_drafts_are_tried_by_their_own_law_alone() -> None:
    """A proposal that was dropped leaves its law behind: drafts of another start, or others at the
    same one, are not tried by it."""
    laws = DraftLaws(4, 3, lambda _, shape, dtype: torch.empty(shape, dtype=dtype))
    rows, starts = torch.tensor([2, 0]), torch.tensor([9, 30], dtype=torch.int32)
    drafts = torch.tensor([[5, 6, 7], [8, 9, 1]], dtype=torch.int32)
    laws.put(rows, starts, Proposal(drafts))
    live = torch.tensor([3, 2], dtype=torch.int32)
    law, tried = laws.of(rows, starts, drafts, live)
    assert tried.tolist() == [3, 2]
    assert law.ids[:, :, 0].equal(drafts)
    assert law.probs.sum(2).eq(1).all()
    assert laws.of(rows, starts + torch.tensor([1, 0]), drafts, live)[1].tolist() == [0, 2]
    others = drafts.clone()
    others[:, 2] = 4
    assert laws.of(rows, starts, others, live)[1].tolist() == [0, 2]
    assert laws.of(rows, starts, others[:, :2], live.clamp(max=2))[1].tolist() == [2, 2]
    assert laws.of(torch.tensor([1, 3]), starts, drafts, live)[1].tolist() == [0, 0]
