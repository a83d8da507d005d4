"""The usual mistakes of a port lower the accepted length, so a test of that length finds them."""

from __future__ import annotations

import dataclasses
import json
from random import Random

import pytest
import torch

from ninfer_demo_model.tasks import draw

FAMILIES = ("copy", "reverse", "sort", "extract", "tools", "system_format")


@pytest.fixture(scope="module")
def model(training, checkpoint):
    from train.train_dflash import frozen_target

    return frozen_target(checkpoint)


@pytest.fixture(scope="module")
def rows(encoder):
    """(ids, prompt length) of so many held-out cases of each family; the replies are those that
    the target gives."""

    def drawn(families, count):
        return [
            encoder.encode(draw(family, Random(f"mistakes/{family}/{number}"), "heldout"))
            for family in families
            for number in range(count)
        ]

    return drawn


@pytest.fixture
def measure(model, folder, tokenizer):
    from train.acceptance import Tally
    from train.drafting import Drafting, count_block_rounds

    def tokens_per_round(kind, cases, change=lambda drafting: None, **nested):
        directory = folder / f"checkpoint_{kind}"
        size = tokenizer.get_vocab_size()
        made = Drafting.load(model, directory, size)
        if nested:
            config = json.loads((directory / "config.json").read_text("utf-8"))
            config["dflash_config"] |= nested
            made = Drafting.of(model, config, made.drafter, size)
        change(made)
        tally = Tally(7)
        for ids, prompt in cases:
            count_block_rounds(made, ids, prompt, tally)
        return 1 + sum(tally.accepted) / tally.rounds

    return tokens_per_round


@pytest.mark.slow
def test_mistakes_cost_acceptance(measure, rows, monkeypatch):
    """Attention that is causal where it should not be, or another mask, cost this drafter nothing
    to speak of: these show in rows alone, see below."""
    from train import drafting
    from train.dflash import Blocks

    cases = rows(FAMILIES, 2)
    right = measure("dflash", cases)
    assert right > 3
    wrong = {
        "taps one too early": measure("dflash", cases, target_layer_ids=[0, 2, 5]),
        "taps one too late": measure("dflash", cases, target_layer_ids=[2, 4, 7]),
        "another order of taps": measure("dflash", cases, target_layer_ids=[6, 3, 1]),
    }
    with monkeypatch.context() as patch:
        patch.setattr(drafting, "block_ids", _masks_alone)
        wrong["no anchor in its row"] = measure("dflash", cases)
    with monkeypatch.context() as patch:
        patch.setattr(Blocks, "positions", property(_late))
        wrong["positions one too late"] = measure("dflash", cases)
    lowered = {name: right - length for name, length in wrong.items()}
    assert min(lowered.values()) > 0.3, lowered


@pytest.mark.slow
def test_the_walk_gains(measure, rows):
    def likeliest(made):
        made.drafter.candidate_selector.walk = lambda logits, *_: logits.argmax(-1)

    cases = rows(("copy", "extract", "tools", "system_format"), 6)
    assert measure("dflash2", cases) - measure("dflash2", cases, likeliest) > 0.1


def test_causal_attention_and_another_mask_show_in_rows(model, folder, rows, tokenizer):
    from train.drafting import Drafting

    made = Drafting.load(model, folder / "checkpoint_dflash", tokenizer.get_vocab_size())
    ((ids, prompt),) = rows(["copy"], 1)
    row = torch.tensor([ids])
    features, anchors = made.features(row), torch.tensor([[prompt]])
    right = made.hidden(row, features, anchors)
    masked = dataclasses.replace(made, mask=5).hidden(row, features, anchors)
    made.drafter.patterns = [(True, window) for _, window in made.drafter.patterns]
    causal = made.hidden(row, features, anchors)
    for wrong in (masked, causal):
        assert (wrong - right).abs().max() > 0.02 * right.abs().max()


def _masks_alone(_ids, blocks, mask):
    return torch.full_like(blocks.positions, mask)


def _late(blocks):
    return (blocks.anchors[..., None] + torch.arange(blocks.width) + 1).flatten(1)
