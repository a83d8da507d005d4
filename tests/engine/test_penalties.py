from __future__ import annotations

from dataclasses import replace

import pytest

from ninfer_core.contract.requests import PromptInput, ResponseFormat, ToolChoice
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.engine.penalties import for_form
from ninfer_core.testing.fake_frontend import FakeFrontend

PRESET = SamplingParams(presence_penalty=1.5, repetition_penalty=1.1, temperature=0.7)
FORM = ResponseFormat(kind="grammar", value="free")


def prepared(**fields):
    prompt = PromptInput(token_ids=[5], response_format=FORM)
    return replace(FakeFrontend(max_context=64).prepare(prompt), request=replace(prompt, **fields))


def test_the_presets_own_penalties_are_dropped_with_a_note():
    sampling, notes = for_form(replace(PRESET, temperature=1.0), PRESET, prepared())
    assert sampling == SamplingParams(temperature=1.0)
    assert len(notes) == 1
    assert "presence_penalty 1.5 and repetition_penalty 1.1" in notes[0]


def test_what_was_asked_for_stays():
    asked = replace(PRESET, presence_penalty=0.4, frequency_penalty=0.2)
    sampling, notes = for_form(asked, PRESET, prepared())
    assert sampling == replace(asked, repetition_penalty=1.0)
    assert "presence" not in notes[0]


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_free_answers_keep_them(mode):
    free = prepared(response_format=ResponseFormat(), tool_choice=ToolChoice(mode=mode))
    assert for_form(PRESET, PRESET, free) == (PRESET, ())
    assert for_form(PRESET, PRESET, replace(prepared(), grammar=None)) == (PRESET, ())


def test_neutral_presets_need_no_note():
    plain = SamplingParams()
    assert for_form(plain, plain, prepared()) == (plain, ())
