"""What DFlash and DFlash2 drafters propose, against the formula in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ninfer_qwen3_5.program.drafting import Drafting
from ninfer_spec_dflash.config import DFlashConfig, LayerPattern
from ninfer_spec_dflash.drafter import DFlashDrafter
from tests.model.block_drafters import (
    FULL,
    MASK,
    Formula,
    bind_block,
    largest,
    patterns,
    published,
)
from tests.model.checkpoint_driver import checkpoint_driver, prompt
from tests.model.scripted_costs import free
from tests.model.test_parity import prompts

TOLERANCE = 5e-4


class Recorded(DFlashDrafter):
    """Keeps the logits and the number of live rows of the last proposal."""

    def bind(self, target: Any) -> None:
        super().bind(_Recording(target, self))

    def propose(self, ids, rows, caches, places, drawing=None):
        self.live = places[0].rows.live.tolist()
        return super().propose(ids, rows, caches, places, drawing)


class _Recording:
    def __init__(self, target: Any, drafter: Recorded) -> None:
        self._parts, self._drafter = target, drafter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parts, name)

    def logits(self, stream: Any, eps: float | None = None) -> torch.Tensor:
        made = self._parts.logits(stream, eps)
        self._drafter.logits = made.clone()
        return made


def opened(case, kind: str, most: int, units: str = "eager", **changes: Any):
    """A driver that drafts with random weights, its drafter and the formula of it."""
    config = DFlashConfig.from_json(published(kind, **changes))
    drafter = Recorded(config)
    weights = bind_block(case, drafter)
    driver = checkpoint_driver(case.model, units, free(Drafting(drafter, most)), max_concurrency=2)
    return driver, drafter, Formula(case, config, weights)


def drafted_rounds(driver, drafter, asked: list[int], rounds: int):
    """After each round: all tokens, the drafts behind them and their logits."""
    row = driver.begin(prompt(asked), max_new_tokens=60)
    driver.prefill(row)
    for _ in range(rounds):
        driver.decode([row])
        drafts = list(driver.record(row).drafts)
        assert drafter.live[0] == 1 + len(drafts)
        yield [*asked, *row.tokens], drafts, drafter.logits[: len(drafts)]


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
@pytest.mark.parametrize("pattern", patterns(), ids=str)
def test_proposals_are_those_of_the_formula(build_case, kind, pattern) -> None:
    """Past the window and a page's edge, by layers that are causal, bidirectional or mixed."""
    case = build_case("tied")
    driver, drafter, formula = opened(case, kind, 5, **pattern)
    for tokens, drafts, logits in drafted_rounds(driver, drafter, prompts(61, [61])[0], 4):
        rows = formula.rows(tokens, len(drafts))
        expected = formula.logits(tokens, len(drafts))
        assert expected.std() > 0.4
        torch.testing.assert_close(logits.double(), expected, rtol=0, atol=TOLERANCE)
        chosen = (
            formula.walk(rows, expected, tokens[-1])
            if formula.config.selector
            else largest(expected)
        )
        assert drafts == chosen


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
@pytest.mark.parametrize("units", ["eager", "queued"])
@pytest.mark.parametrize("most", [1, 7])
def test_every_number_of_drafts(build_case, kind, units, most) -> None:
    """Blocks of K + 1 rows; a prompt of one token has no context at all before its first draft."""
    case = build_case("untied")
    driver, drafter, formula = opened(case, kind, most, units)
    for asked in ([7], prompts(62, [130])[0]):
        for tokens, drafts, logits in drafted_rounds(driver, drafter, asked, 2):
            expected = formula.logits(tokens, len(drafts))
            torch.testing.assert_close(logits.double(), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_scales_and_caps(build_case, kind) -> None:
    """DFlash's largest logit is the same with and without them."""
    nested = {
        "output_multiplier": 0.3,
        "final_logit_softcapping": 2.0,
        "input_embedding_scale": 1.7,
    }
    case = build_case("tied")
    driver, drafter, formula = opened(case, kind, 7, nested=nested)
    assert formula.config.logit_softcap == 2.0
    for tokens, drafts, logits in drafted_rounds(driver, drafter, prompts(63, [33])[0], 4):
        rows, expected = formula.rows(tokens, len(drafts)), formula.logits(tokens, len(drafts))
        torch.testing.assert_close(logits.double(), expected, rtol=0, atol=TOLERANCE)
        if kind == "dflash":
            assert drafts == largest(2.0 * (0.3 * expected / 2.0).tanh())
        else:
            assert drafts == formula.walk(rows, expected, tokens[-1])


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_silent_mistakes_are_no_rounding(build_case, kind) -> None:
    """Each of these gives drafts that are accepted a little less, and no error: the tests above
    would see them, since they change logits by far more than the tolerance."""
    case = build_case("tied")
    config = DFlashConfig.from_json(published(kind, sliding_window=16))
    drafter = Recorded(config)
    formula = Formula(case, config, bind_block(case, drafter))
    tokens = prompts(64, [50])[0]
    right = formula.logits(tokens, 7)

    def off(wrong: Formula, taps: tuple[int, ...] = ()) -> float:
        return float((wrong.logits(tokens, 7, taps) - right).abs().mean())

    def pattern(**changes: Any) -> Formula:
        layers = tuple(replace(layer, **changes) for layer in config.layers)
        return Formula(case, replace(config, layers=layers), formula._weights)

    mistakes = {
        "taps one early": off(formula, (0, 1, 2)),
        "taps in another order": off(formula, (3, 2, 0)),
        "all causal": off(pattern(causal=True)),
        "none causal": off(pattern(causal=False)),
        "no window": off(pattern(window=None)),
        "a window one short": off(pattern(window=15)),
        "another theta": off(Formula(case, replace(config, rope_theta=1e6), formula._weights)),
        "a mask token as the anchor": float(
            (formula.logits([*tokens[:-1], MASK], 7) - right).abs().mean()
        ),
    }
    assert min(mistakes.values()) > 10 * TOLERANCE, mistakes


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_the_mask_token_is_never_drafted(build_case, kind) -> None:
    """Even where its logit is the largest of all."""
    case = build_case("tied")
    driver, drafter, _ = opened(case, kind, 7)
    parts, before = drafter._target, drafter._target.logits

    def first(stream, eps=None):
        made = before(stream, eps)
        made[:, MASK] = 1e3
        return made

    parts.logits = first
    for _, drafts, _ in drafted_rounds(driver, drafter, prompts(65, [20])[0], 5):
        assert MASK not in drafts
        assert drafts


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
@pytest.mark.parametrize("units", ["eager", "queued"])
def test_features_of_chunks_and_of_rounds_are_the_same(build_case, kind, units) -> None:
    """What a prompt leaves in the drafter's caches, rounds leave too, up to rounding."""
    case = build_case("tied")
    asked = prompts(66, [70])[0]
    driver, _, _ = opened(case, kind, 3, units)
    row = driver.begin(prompt(asked))
    driver.generate(row, 24)
    at = driver.record(row).frontier
    fresh, _, _ = opened(case, kind, 3, units)
    other = fresh.begin(prompt([*asked, *row.tokens][:at]), max_new_tokens=1)
    fresh.prefill(other)
    assert fresh.record(other).frontier == at
    for ours, theirs in zip(driver.state_of(row)[-4:], fresh.state_of(other)[-4:], strict=True):
        assert ours[70:].std() > 0.3
        torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-4)


def test_layers_of_one_pattern(build_case) -> None:
    """The file's rule: sliding layers are causal, full ones are not, unless a key says it."""
    both = DFlashConfig.from_json(published("dflash")).layers
    assert both == (LayerPattern(True, 40), LayerPattern(False, None))
    all_full = DFlashConfig.from_json(published("dflash", layer_types=[FULL, FULL])).layers
    assert {layer.causal for layer in all_full} == {False}
