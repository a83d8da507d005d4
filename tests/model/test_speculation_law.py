"""The joint law of tokens through rounds of a Program that verify drafts: a share of the acceptance
run, whose exact law is enumerated in float64."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench" / "accept"))

import speculation_law
from _tiny_target import VOCAB, TinyTarget

from ninfer_core.contract.sampling import SamplingParams

DRAWS = 600


@pytest.fixture(scope="module")
def target():
    return TinyTarget.random(speculation_law.MODEL_SEED)


def p_of(target, asked, draws=DRAWS, **program):
    counts = speculation_law.draw(target, asked, draws, 3, **program)
    assert 0 < counts.taken < counts.made
    return speculation_law.p_value(speculation_law.joint_law(target, asked), counts.seen)


@pytest.mark.parametrize(
    ("name", "queued"), list(zip(speculation_law.SETTINGS, (False, True), strict=True))
)
def test_the_joint_law_is_the_targets(target, name, queued):
    asked = speculation_law.SETTINGS[name]
    assert p_of(target, asked, queued=queued) > speculation_law.LEAST_P


def test_drafts_taken_too_often_are_seen(target):
    asked = SamplingParams(temperature=1.0)
    assert p_of(target, asked, 1200, ops=speculation_law.rooted()) < speculation_law.SEEN_P


def test_the_law_that_is_held_against_is_one():
    """By hand: three tokens are kept of eight, of which top-p leaves two."""
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.02, 0.02, 0.02, 0.02, 0.02]))
    asked = SamplingParams(temperature=1.0, top_p=0.6)
    found = speculation_law.law(logits, (), asked)
    assert found[:3] == pytest.approx([4 / 7, 3 / 7, 0.0])
    pushed = speculation_law.law(
        logits, (0, 0), SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    )
    expected = np.exp(logits)
    expected[0] *= np.exp(-1.0)
    assert pushed == pytest.approx(expected / expected.sum())
    assert len(found) == VOCAB
