from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

from ninfer_core.contract.requests import PromptInput
from ninfer_core.errors import NinferError

USER = [{"role": "user", "content": "hi"}]


@contextmanager
def refused(match):
    """The start is refused with words that fit ``match``, and says what to do."""
    with pytest.raises(NinferError, match=match) as caught:
        yield
    assert caught.value.hint


def test_stop_ids_are_the_union_of_all_files(opened, artifact, raw_tokenizer):
    ids = {name: raw_tokenizer.token_to_id(name) for name in ("<|im_end|>", "<|endoftext|>")}
    assert opened(artifact).describe()["stop_token_ids"] == sorted(ids.values())
    artifact.config = {"eos_token_id": 7, "text_config": {"eos_token_id": [8, 9]}}
    artifact.resources["generation_config.json"] = b'{"eos_token_id": [10, 7]}'
    settings = {"eos_token": {"content": "<|vision_pad|>"}}
    artifact.resources["tokenizer_config.json"] = json.dumps(settings).encode()
    pad = raw_tokenizer.token_to_id("<|vision_pad|>")
    expected = sorted({7, 8, 9, 10, pad, *ids.values()})
    assert opened(artifact).describe()["stop_token_ids"] == expected


@pytest.mark.parametrize("value", ["2", True, [1, "x"], 10**6])
def test_a_malformed_eos_is_an_error(opened, artifact, value):
    artifact.config = {"eos_token_id": value}
    with refused("eos_token_id"):
        opened(artifact)


def test_sampling_defaults_are_those_of_the_checkpoint(opened, artifact):
    assert opened(artifact).default_sampling.temperature == 1.0
    artifact.resources["generation_config.json"] = json.dumps(
        {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "pad_token_id": 1}
    ).encode()
    sampling = opened(artifact).default_sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 20, 0.95)
    artifact.resources["generation_config.json"] = b'{"do_sample": false, "temperature": 0.6}'
    assert opened(artifact).default_sampling.greedy


@pytest.mark.parametrize(
    ("name", "data", "match"),
    [
        ("generation_config.json", b'{"top_p": 7}', "generation_config.json.*top_p"),
        ("generation_config.json", b"[]", "must hold a JSON object"),
        ("generation_config.json", b"{", "not valid JSON"),
        ("tokenizer_config.json", b"{", "not valid JSON"),
        ("chat_template.jinja", b"\xff", "not UTF-8"),
        ("chat_template.jinja", b"{% if %}", "does not parse"),
    ],
)
def test_a_malformed_file_is_named(opened, artifact, name, data, match):
    artifact.resources[name] = data
    with refused(match):
        opened(artifact)


def test_a_missing_tokenizer_is_named(opened, artifact):
    del artifact.resources["tokenizer.json"]
    with refused(r"no tokenizer\.json"):
        opened(artifact)


def test_a_tokenizer_without_the_familys_marks_is_refused(opened, artifact):
    fields = json.loads(artifact.resources["tokenizer.json"])
    fields["added_tokens"] = [t for t in fields["added_tokens"] if t["content"] != "</think>"]
    artifact.resources["tokenizer.json"] = json.dumps(fields).encode()
    with refused("'</think>'"):
        opened(artifact)


@pytest.mark.parametrize("nested", [True, False])
def test_a_tokenizer_larger_than_the_model_is_refused(opened, artifact, nested):
    artifact.config = {"text_config": {"vocab_size": 300}} if nested else {"vocab_size": 300}
    with refused("vocab_size is 300"):
        opened(artifact)


def test_templates_have_an_order_of_precedence(opened, artifact, tmp_path):
    settings = {"chat_template": "from the config"}
    artifact.resources["tokenizer_config.json"] = json.dumps(settings).encode()
    artifact.resources["chat_template.jinja"] = b"from the file"
    given = tmp_path / "given.jinja"
    given.write_text("from the option")
    option = {"chat_template": str(given)}
    assert opened(artifact, options=option).render(PromptInput(messages=USER)) == "from the option"
    assert opened(artifact).render(PromptInput(messages=USER)) == "from the file"
    del artifact.resources["chat_template.jinja"]
    assert opened(artifact).render(PromptInput(messages=USER)) == "from the config"


def test_a_file_made_from_a_list_of_templates_does_not_hide_the_others(opened, artifact, tools):
    named = {"default": "plain", "tool_use": "tools"}
    listed = [{"name": name, "template": source} for name, source in named.items()]
    artifact.resources["tokenizer_config.json"] = json.dumps({"chat_template": listed}).encode()
    artifact.resources["chat_template.jinja"] = b"plain"
    with_tools = PromptInput(messages=USER, tools=tools)
    assert opened(artifact).render(with_tools) == "tools"
    artifact.resources["chat_template.jinja"] = b"another"
    assert opened(artifact).render(with_tools) == "another"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"chat_template": "/no/such/file"}, "/no/such/file cannot be read"),
        ({"chat_template": 3}, "must be text"),
        ({"colour": "red"}, "'colour' does not exist"),
    ],
)
def test_a_wrong_option_is_named(opened, artifact, options, match):
    with refused(match):
        opened(artifact, options=options)


def test_a_malformed_template_list_is_an_error(opened, artifact):
    del artifact.resources["chat_template.jinja"]
    artifact.resources["tokenizer_config.json"] = b'{"chat_template": [{"name": "a"}]}'
    with refused("list of named templates"):
        opened(artifact)
