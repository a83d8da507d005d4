"""DFlash drafters from the outside: converted, chosen by name, refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

import ninfer_demo_model
from ninfer_core import Engine
from ninfer_core.artifact.convert import ConvertOptions, convert
from ninfer_core.artifact.reader import Artifact
from ninfer_core.contract.requests import (
    ChatOptions,
    GenerationOptions,
    PromptInput,
    ResponseFormat,
)
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.conversion import converters, draft_converters
from ninfer_core.errors import NinferError
from ninfer_core.hookspecs import TargetFacts
from ninfer_core.plugins import load_plugins
from ninfer_demo_model.source import resolve
from ninfer_spec_dflash.config import DFlashConfig
from ninfer_spec_dflash.convert import shapes
from ninfer_spec_dflash.fit import verdict
from tests.model.block_drafters import RandomSource, published
from tests.model.test_draft_choice import COUNT_TO_20, answered, options

CHECKPOINT = Path(ninfer_demo_model.__file__).parents[1] / "checkpoint"
GREEDY = SamplingParams(temperature=0.0, seed=0)
SIZES = {
    "hidden_size": 192,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_target_layers": 8,
    "vocab_size": 2560,
}


def sized(kind: str, block: int, **changes: Any) -> dict[str, Any]:
    nested = {"target_layer_ids": [1, 4, 7], "mask_token_id": 2559, "block_size": block}
    return published(kind, **{**SIZES, "nested": nested, **changes})


def written(path: Path, config: dict[str, Any]) -> Path:
    """A drafter's directory with random weights."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    source = RandomSource()
    made = {k: source.tensor(k, shape) for k, shape in shapes(DFlashConfig.from_json(config))}
    save_file(made, path / "model.safetensors")
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """The demo model with random drafters of both kinds, of blocks of 16 and 8 rows."""
    where = tmp_path_factory.mktemp("drafters")
    host = load_plugins()
    convert(
        CHECKPOINT,
        where / "demo.ninfer",
        architectures=converters(host),
        drafters=draft_converters(host),
        options=ConvertOptions(
            recipe="bf16",
            drafters=(
                written(where / "first", sized("dflash", 16)),
                written(where / "second", sized("dflash2", 8)),
            ),
        ),
    )
    return where / "demo.ninfer"


def chosen(spec: str, drafts: int, **changes: Any):
    return options(
        drafts, **{"plugins": ("spec_dflash",), "draft": spec, "draft_tokens": drafts, **changes}
    )


@pytest.fixture(scope="module")
def plain():
    with Engine.open(resolve(), options()) as engine:
        yield _answers(engine), engine.memory_summary().bytes


def _answers(engine) -> list:
    return [
        answered(engine, logprobs=3),
        answered(engine, sampling={"temperature": 0.9, "top_k": 20, "presence_penalty": 1.0}),
        answered(engine, COUNT_TO_20),
    ]


@pytest.mark.parametrize(("spec", "drafts"), [("dflash", 1), ("dflash", 15), ("dflash2", 7)])
def test_answers_are_those_of_plain_decoding(path, plain, spec, drafts):
    """Random weights draft nothing right, and nothing is lost by it; every token has its
    log-probabilities."""
    with Engine.open(path, chosen(spec, drafts)) as engine:
        made, memory = _answers(engine), engine.memory_summary().bytes
    for ours, theirs in zip(made, plain[0], strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.text == theirs.text
        assert ours.logprobs == theirs.logprobs
        assert sum(ours.timings.drafted) > 0
    assert len(made[0].logprobs) == len(made[0].token_ids)
    assert memory["kv"] == pytest.approx(plain[1]["kv"], rel=0.02)
    config = DFlashConfig.from_json(sized(spec, 16))
    # Two layers, keys and values of two heads of 64 in fp32, for each of the target's pages, which
    # hold as many heads of 256 in two layers.
    assert memory["draft_kv"] == pytest.approx(plain[1]["kv"] / 4, rel=0.05)
    elements = sum(_count(shape) for _, shape in shapes(config))
    assert 2 * elements < memory["draft_weights"] < 4 * elements + (1 << 16)


BOOLEAN = ResponseFormat(kind="json_schema", value={"type": "boolean"})
OBJECT = ResponseFormat(kind="json_object")
FORMS = [
    PromptInput(
        messages=[{"role": "user", "content": f"Is {number} even?"}],
        chat=ChatOptions(thinking=thinking),
        response_format=form,
    )
    for number, form in enumerate((BOOLEAN, OBJECT))
    for thinking in (False, True)
]


def _formed(engine) -> list:
    handles = [
        engine.submit(asked, GenerationOptions(sampling=GREEDY, max_new_tokens=60))
        for asked in FORMS
    ]
    return [handle.result(60.0) for handle in handles]


def test_forms_end_where_they_end_without_drafts(path):
    """The longest blocks run past the end of a boolean in every round, at once with thoughts that
    the form leaves alone."""
    with Engine.open(resolve(), options(max_concurrency=3)) as engine:
        expected = _formed(engine)
    for spec, drafts in (("dflash", 15), ("dflash2", 7)):
        with Engine.open(path, chosen(spec, drafts, max_concurrency=3)) as engine:
            made = _formed(engine)
        assert [m.token_ids for m in made] == [e.token_ids for e in expected]
        assert [m.finish_reason for m in made] == [e.finish_reason for e in expected]
    assert made[0].text in ("true", "false")


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def test_seven_drafts_unless_told_otherwise(path):
    with Engine.open(path, chosen("dflash2", 0)) as engine:
        assert 0 < len(answered(engine).timings.drafted) <= 7


def test_a_drafter_is_read_only_when_it_is_chosen(path, monkeypatch):
    read: list[str] = []
    before = Artifact.tensor

    def noted(self, name, *rest):
        read.append(name)
        return before(self, name, *rest)

    monkeypatch.setattr(Artifact, "tensor", noted)
    for spec, wanted in (("dflash", {"dflash"}), ("dflash2", {"dflash2"}), (None, set())):
        read.clear()
        asked = chosen(spec, 2) if spec else options()
        with Engine.open(path, asked) as engine:
            answered(engine)
        assert {name.split(".")[0] for name in read} - {"text"} == wanted


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (chosen("dflash2", 8), "the dflash2 drafter of this artifact makes at most 7"),
        (chosen("dflash", 16), "makes at most 15"),
        (chosen(None, 2), "the draft backends dflash, dflash2 are offered"),
        (chosen("mtp", 2), "mtp"),
    ],
)
def test_choices_that_cannot_be(path, asked, said):
    with pytest.raises(NinferError, match=said):
        Engine.open(path, asked)


def test_an_artifact_without_a_drafter_is_refused(tmp_path):
    bare = tmp_path / "bare.ninfer"
    host = load_plugins()
    options = ConvertOptions(recipe="bf16", components=("text",))
    convert(CHECKPOINT, bare, architectures=converters(host), options=options)
    for spec, name in (("dflash", "DFlash"), ("dflash2", "DFlash2")):
        with pytest.raises(NinferError, match=f"no {name} drafter.*convert with --drafter"):
            Engine.open(bare, chosen(spec, 2))


FACTS = TargetFacts(
    architecture="Qwen3_5ForCausalLM", layers=8, hidden_size=192, vocab_size=2560, components={}
)


@pytest.mark.parametrize(
    ("component", "config", "said"),
    [
        ("dflash", sized("dflash", 8, hidden_size=64), "hidden_size: 64, the target has 192"),
        ("dflash", sized("dflash", 8, vocab_size=2048), "mask_token_id"),
        ("dflash", sized("dflash", 8, vocab_size=4096), "vocab_size: 4096, the target has 2560"),
        ("dflash", sized("dflash", 8, num_target_layers=9), "num_target_layers: 9, the target"),
        ("dflash", sized("dflash2", 8), "choose --spec dflash2"),
        ("dflash2", sized("dflash", 8), "choose --spec dflash"),
        ("dflash", sized("dflash", 32, sliding_window=31), "does not hold a block of 32"),
        ("dflash2", sized("dflash2", 8, nested={"selector_top_k": 65}), "selector_top_k"),
        ("dflash", sized("dflash", 8, layer_norm="pre"), "layer_norm: unknown key"),
    ],
)
def test_drafters_that_do_not_fit_are_refused(component, config, said):
    made = verdict(component, replace(FACTS, components={component: config}))
    assert not made.ok
    assert said in made.reason


def test_drafters_that_fit(path):
    for kind in ("dflash", "dflash2"):
        assert verdict(kind, replace(FACTS, components={kind: sized(kind, 16)})).ok
