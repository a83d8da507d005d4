"""Draft backends from the outside: chosen by naming their plug-in, bound then and not otherwise."""

from __future__ import annotations

import random

import pytest

from ninfer_core import Engine
from ninfer_core.artifact.reader import Artifact
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.instance import Purpose
from ninfer_core.contract.requests import ChatOptions, GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.errors import NinferError
from ninfer_demo_model.source import resolve
from ninfer_demo_model.tasks import draw
from ninfer_qwen3_5.geometry.artifact import Geometry, write_geometry
from tests.model.test_geometry import TINY

CASE = draw("sort", random.Random("speculation"), "heldout")
ASKED = PromptInput(messages=CASE.messages, chat=ChatOptions(thinking=CASE.thinking))
COUNT_TO_20 = PromptInput(
    messages=[{"role": "user", "content": "Count from 1 to 20, one number per line."}]
)


def options(drafts: int = 0, **changes) -> EngineOptions:
    named = {"plugins": ("spec_mtp",), "draft_tokens": drafts} if drafts else {}
    return EngineOptions(**{"devices": ("cpu",), "max_context": 256, **named, **changes})


def answered(engine, prompt=ASKED, **asked):
    sampling = SamplingParams(**{"temperature": 0.0, "seed": 4, **asked.pop("sampling", {})})
    wanted = GenerationOptions(sampling=sampling, max_new_tokens=120, **asked)
    return engine.submit(prompt, wanted).result(60.0)


@pytest.fixture(scope="module")
def demo():
    with Engine.open(resolve(), options()) as engine:
        yield {
            "greedy": answered(engine, logprobs=3),
            "drawn": answered(engine, sampling={"temperature": 0.9, "top_k": 20}),
            "count": answered(engine, COUNT_TO_20),
        }


@pytest.mark.parametrize("drafts", [1, 3, 8])
def test_the_demo_model_speculates_with_its_own_head(demo, drafts):
    with Engine.open(resolve(), options(drafts)) as engine:
        greedy = answered(engine, logprobs=3)
        drawn = answered(engine, sampling={"temperature": 0.9, "top_k": 20})
        count = answered(engine, COUNT_TO_20)
    assert greedy.token_ids == demo["greedy"].token_ids
    assert greedy.text == demo["greedy"].text
    assert greedy.logprobs == demo["greedy"].logprobs
    assert len(greedy.logprobs) == len(greedy.token_ids)
    assert drawn.token_ids == demo["drawn"].token_ids
    assert count.text == demo["count"].text
    timings = greedy.timings
    assert timings.rounds < demo["greedy"].timings.rounds
    assert len(timings.drafted) == drafts
    assert all(a <= d for a, d in zip(timings.accepted, timings.drafted, strict=True))
    assert list(timings.accepted) == sorted(timings.accepted, reverse=True)


def test_three_drafts_unless_told_otherwise(demo):
    with Engine.open(resolve(), options(plugins=("spec_mtp",))) as engine:
        assert len(answered(engine).timings.drafted) == 3


def test_drafts_can_be_drawn(demo):
    """Another text than the seed's without drafts, the same every time, and greedy ones stay."""
    sampling = {"temperature": 1.0, "top_k": 20}
    made = []
    for _ in range(2):
        with Engine.open(resolve(), options(3, draft_sampling=True)) as engine:
            assert answered(engine).token_ids == demo["greedy"].token_ids
            made.append([answered(engine, sampling=sampling | {"seed": n}) for n in range(4)])
    assert [m.token_ids for m in made[0]] == [m.token_ids for m in made[1]]
    assert sum(sum(m.timings.accepted) for m in made[0]) > 0


def test_the_head_is_read_only_when_it_is_chosen(monkeypatch):
    read: list[str] = []
    plain = Artifact.tensor

    def noted(self, name, *rest):
        read.append(name)
        return plain(self, name, *rest)

    monkeypatch.setattr(Artifact, "tensor", noted)
    for drafts in (0, 2):
        read.clear()
        with Engine.open(resolve(), options(drafts)) as engine:
            answered(engine)
        assert any(name.startswith("mtp.") for name in read) == bool(drafts)


def test_a_geometry_has_a_random_head(tmp_path):
    path = tmp_path / "tiny.ninfer"
    config = TINY | {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
    write_geometry(path, "tiny", config, Geometry("bf16", seed=3), 300)
    prompt, made = PromptInput(token_ids=[1, 299, 7, 80]), []
    for drafts in (0, 3):
        with Engine.open(path, options(drafts)) as engine:
            made.append(answered(engine, prompt))
    assert made[0].token_ids == made[1].token_ids
    assert 0 < made[1].timings.drafted[0] < 110


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"draft_tokens": 9, "plugins": ("spec_mtp",)}, "at most 8"),
        ({"draft_tokens": 2}, "no draft backend was chosen"),
        ({"draft_sampling": True}, "no draft backend was chosen"),
        ({"plugins": ("spec_mtp",), "purpose": Purpose.CAUSAL_SCORING}, "is for generation"),
        ({"draft": "mtp"}, "acts only when its plug-in is named"),
    ],
)
def test_choices_that_cannot_be(changes, said):
    with pytest.raises(NinferError, match=said):
        Engine.open(resolve(), options(**changes))


def test_a_checkpoint_without_a_head_is_refused(tmp_path):
    path = tmp_path / "tiny.ninfer"
    write_geometry(path, "tiny", TINY, Geometry("bf16", seed=3), 300)
    with pytest.raises(NinferError, match="the checkpoint has no MTP layer"):
        Engine.open(path, options(2))
