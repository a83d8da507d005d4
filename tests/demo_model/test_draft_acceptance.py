"""The engine accepts as many drafts of the demo model's head as the training script says."""

from __future__ import annotations

from random import Random

import pytest

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_demo_model.source import resolve
from ninfer_demo_model.tasks import draw

DRAFTS = 3
FAMILIES = ("copy", "reverse", "sort", "extract", "tools", "system_format")


@pytest.mark.slow
@pytest.mark.usefixtures("training")
def test_accepted_lengths_are_those_of_the_training_script(checkpoint, encoder) -> None:
    """Round by round over the same replies, so the counts are equal and not only near; computed by
    transformers there and by the engine here, both in fp32."""
    from train.acceptance import Tally, count_rounds
    from train.evaluate import load

    subject = load(checkpoint, "mtp")
    assert subject.head is not None
    options = EngineOptions(
        devices=("cpu",), plugins=("spec_mtp",), draft_tokens=DRAFTS, max_context=1024
    )
    asked = GenerationOptions(sampling=SamplingParams(temperature=0.0), max_new_tokens=200)
    with Engine.open(resolve(), options) as engine:
        for family in FAMILIES:
            case = draw(family, Random(f"acceptance/{family}"), "heldout")
            prompt = encoder.prompt_ids(case)
            result = engine.submit(PromptInput(token_ids=prompt), asked).result(120.0)
            tally = Tally(DRAFTS)
            whole = [*prompt, *result.token_ids]
            count_rounds(subject.model, subject.head, whole, len(prompt), tally)
            assert result.timings.rounds - 1 == tally.rounds, family
            # The last round may draft beyond the reply; in all others the counts are the same.
            for ours, theirs in zip(result.timings.accepted, tally.accepted, strict=True):
                assert 0 <= ours - theirs <= 1, family
