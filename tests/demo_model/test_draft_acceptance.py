"""The engine accepts as many drafts of the demo model's drafters as the training script says."""

from __future__ import annotations

from random import Random

import pytest

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_demo_model.source import resolve
from ninfer_demo_model.tasks import draw
from ninfer_qwen3_5.program.steering import Steering

DRAFTERS = {"mtp": ("spec_mtp", 3), "dflash": ("spec_dflash", 7), "dflash2": ("spec_dflash", 7)}
FAMILIES = ("copy", "reverse", "sort", "extract", "tools", "system_format")


@pytest.mark.slow
@pytest.mark.usefixtures("training")
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_accepted_lengths_are_those_of_the_training_script(
    checkpoint, encoder, monkeypatch, drafter
) -> None:
    """Round by round over the same replies, so the counts are equal and not only near; computed by
    transformers and plain torch there and by the engine here, both in fp32. Every round makes all
    its drafts."""
    from train.acceptance import Tally
    from train.evaluate import load

    plugin, drafts = DRAFTERS[drafter]
    monkeypatch.setattr(Steering, "wanted", lambda steering, *_args, **_more: steering.most)
    subject = load(checkpoint, [drafter])
    options = EngineOptions(
        devices=("cpu",), plugins=(plugin,), draft=drafter, draft_tokens=drafts, max_context=1024
    )
    asked = GenerationOptions(sampling=SamplingParams(temperature=0.0), max_new_tokens=200)
    whole = Tally(drafts)
    with Engine.open(resolve(), options) as engine:
        for family in FAMILIES:
            case = draw(family, Random(f"acceptance/{family}"), "heldout")
            prompt = encoder.prompt_ids(case)
            result = engine.submit(PromptInput(token_ids=prompt), asked).result(120.0)
            tally = Tally(drafts)
            subject.count(drafter, [*prompt, *result.token_ids], len(prompt), tally)
            assert result.timings.rounds - 1 == tally.rounds, family
            # The last round may draft beyond the reply; in all others the counts are the same.
            for ours, theirs in zip(result.timings.accepted, tally.accepted, strict=True):
                assert 0 <= ours - theirs <= 1, family
            whole.rounds += tally.rounds
            whole.accepted = [a + b for a, b in zip(whole.accepted, tally.accepted, strict=True)]
    assert 1 + sum(whole.accepted) / whole.rounds > 2.5
