"""Rendered prompts against `transformers`' own apply_chat_template."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ninfer_core.contract.instance import FrontendRequest
from ninfer_core.contract.requests import ChatOptions, PromptInput
from ninfer_qwen3_5.frontend import open_frontend

DEMO = Path(__file__).parents[2] / "plugins" / "demo_model" / "checkpoint"

WORDS = (
    "quick fox 42 日本 Größe 😀 <b> & \"quoted\" 'single' {{x}} {%y%} </think> <tool_call> "
    "line\nbreak tab\t # | [1,2] <|im_end|> é e\u0301 \u2028"
).split(" ")


def text(rng: Random, most: int = 8) -> str:
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))
    return rng.choice(["", " ", "\n\n"]) + words + rng.choice(["", " ", "\n"])


def content(rng: Random):
    if rng.random() < 0.75:
        return text(rng)
    return [{"type": "text", "text": text(rng)} for _ in range(rng.randint(1, 3))]


def value(rng: Random, depth: int = 0):
    kinds = [
        lambda: text(rng, 3),
        lambda: rng.randint(-5, 10**12),
        lambda: rng.choice([0.5, 1e-7, 3.0]),
        lambda: rng.choice([True, False, None]),
    ]
    if depth < 2:
        kinds += [
            lambda: [value(rng, depth + 1) for _ in range(rng.randint(0, 3))],
            lambda: {f"k{i}é": value(rng, depth + 1) for i in range(rng.randint(0, 2))},
        ]
    return rng.choice(kinds)()


def assistant(rng: Random):
    message = {"role": "assistant", "content": content(rng)}
    if rng.random() < 0.5:
        message["reasoning_content"] = text(rng)
    if rng.random() < 0.3:
        message["content"] = f"<think>\n{text(rng)}\n</think>\n\n{text(rng)}"
    calls = []
    if rng.random() < 0.4:
        for number in range(rng.randint(1, 3)):
            arguments = {f"p{i}": value(rng) for i in range(rng.randint(0, 3))}
            function = {"name": f"tool{number}", "arguments": arguments}
            calls.append({"id": f"call_{number}", "type": "function", "function": function})
        message["tool_calls"] = calls
        if rng.random() < 0.5:
            message["content"] = rng.choice(["", None])
    return message, len(calls)


def conversation(rng: Random):
    messages = []
    if rng.random() < 0.6:
        messages.append({"role": "system", "content": content(rng)})
    for _ in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": content(rng)})
        for _ in range(rng.randint(0, 3)):
            message, calls = assistant(rng)
            messages.append(message)
            messages += [{"role": "tool", "content": text(rng)} for _ in range(calls)]
    messages.append({"role": "user", "content": content(rng)})
    if rng.random() < 0.3:
        message, calls = assistant(rng)
        messages.append(message)
        messages += [{"role": "tool", "content": text(rng)} for _ in range(calls)]
    return messages


def declared(rng: Random):
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool{number}",
                "description": text(rng),
                "parameters": {"type": "object", "properties": {"p0": {"enum": [value(rng)]}}},
            },
        }
        for number in range(rng.randint(0, 3))
    ]


def options(rng: Random, readable):
    kwargs = {}
    if rng.random() < 0.5:
        kwargs["enable_thinking"] = rng.random() < 0.5
    for name, choices in (("reasoning_effort", ["low", "high"]), ("preserve_thinking", [True])):
        if name in readable and rng.random() < 0.3:
            kwargs[name] = rng.choice(choices)
    return kwargs


@pytest.fixture(scope="module")
def peer(raw_tokenizer, template_source):
    return PreTrainedTokenizerFast(
        tokenizer_object=raw_tokenizer,
        chat_template=template_source,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )


@pytest.fixture(scope="module")
def demo_pair(artifact_of):
    """The demo model's text side, opened by us and by transformers."""
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    artifact = artifact_of({name: (DEMO / name).read_bytes() for name in names})
    ours = open_frontend(FrontendRequest(artifact=artifact, max_context=1 << 20))
    return ours, AutoTokenizer.from_pretrained(DEMO)


@pytest.fixture(params=["shaped", "demo"])
def pair(request, frontend, peer, demo_pair):
    return (frontend, peer) if request.param == "shaped" else demo_pair


@pytest.mark.parametrize("seed", range(200))
def test_prompt_equals_that_of_transformers(pair, seed):
    frontend, peer = pair
    rng = Random(seed)
    messages, tools = conversation(rng), declared(rng)
    kwargs = options(rng, frontend.describe()["template_variables"])
    prompt = PromptInput(messages=messages, tools=tools, chat=ChatOptions(template_kwargs=kwargs))
    arguments = {"tools": tools or None, "add_generation_prompt": True, **kwargs}
    expected = peer.apply_chat_template(messages, tokenize=False, **arguments)
    assert frontend.render(prompt) == expected
    ids = peer.apply_chat_template(messages, return_dict=False, **arguments)
    assert frontend.prepare(prompt).token_ids.tolist() == ids


@pytest.mark.parametrize("seed", range(40))
def test_continued_prompt_equals_that_of_transformers(pair, seed):
    frontend, peer = pair
    rng = Random(seed)
    messages = conversation(rng)
    messages.append({"role": "assistant", "content": text(rng).replace("</think>", "")})
    if rng.random() < 0.3:
        messages[-1]["content"] = [{"type": "text", "text": t} for t in ("one ", "two\n")]
    if rng.random() < 0.5:
        messages[-1]["reasoning_content"] = text(rng)
    prompt = PromptInput(messages=messages, chat=ChatOptions(continue_final=True))
    expected = peer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    assert frontend.render(prompt) == expected


def test_a_thought_can_be_continued(frontend, peer):
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "reasoning_content": "Let me think about "},
    ]
    prompt = PromptInput(messages=messages, chat=ChatOptions(continue_final=True))
    expected = peer.apply_chat_template(
        messages, tokenize=False, continue_final_message="reasoning_content"
    )
    assert frontend.render(prompt) == expected


DIALECT = """
{%- for message in messages -%}
  {%- if loop.index > 3 %}{% break %}{% endif %}
  {%- if message.role == 'tool' %}{% continue %}{% endif %}
  {% generation %}{% set inner = message.content %}{{ inner | trim }}{% endgeneration %}
  {{ message | tojson(indent=2) }}{{ message | tojson(sort_keys=true) }}
  {{ [eos_token, pad_token] | tojson }}{{ bos_token is defined }}{{ inner is defined }}
  {{ documents }}
  {{ 'ab' * 3 }}{{ 2 ** 5 }}{{ dict(a=1) }}{{ namespace(a=2).a }}{{ '%05.1f' % 3.25 }}
  {{ message.items() | list | length }}
{% endfor -%}
{{ strftime_now('%Y') | length }} {{ tools is none }} {{ 'x' if nothing is undefined }}
"""


def test_the_dialect_is_that_of_transformers(raw_tokenizer, opened, artifact):
    artifact.resources["chat_template.jinja"] = DIALECT.encode()
    frontend = opened(artifact)
    peer = PreTrainedTokenizerFast(
        tokenizer_object=raw_tokenizer,
        chat_template=DIALECT,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    messages = [
        {"role": "user", "content": "<a> & 'é'"},
        {"role": "tool", "content": "skipped"},
        {"role": "assistant", "content": " b ", "extra": {"z": 1, "a": [None, True]}},
        {"role": "user", "content": "never reached"},
    ]
    documents = [{"title": "t", "text": "x"}]
    prompt = PromptInput(
        messages=messages, chat=ChatOptions(template_kwargs={"documents": documents})
    )
    expected = peer.apply_chat_template(
        messages, documents=documents, tokenize=False, add_generation_prompt=True
    )
    assert frontend.render(prompt) == expected
    assert "<a> &" in expected


def test_named_templates_are_chosen_as_in_transformers(raw_tokenizer, opened, artifact, tools):
    named = {"default": "plain {{ messages | length }}", "tool_use": "tools {{ tools | length }}"}
    del artifact.resources["chat_template.jinja"]
    listed = [{"name": name, "template": source} for name, source in named.items()]
    artifact.resources["tokenizer_config.json"] = json.dumps({"chat_template": listed}).encode()
    frontend = opened(artifact)
    peer = PreTrainedTokenizerFast(tokenizer_object=raw_tokenizer, chat_template=named)
    messages = [{"role": "user", "content": "hi"}]
    for given in ([], tools):
        expected = peer.apply_chat_template(messages, tools=given or None, tokenize=False)
        assert frontend.render(PromptInput(messages=messages, tools=given)) == expected
