from __future__ import annotations

import hashlib
import json
import struct

import numpy as np
import pytest

from ninfer_core.contract.errors import (
    ContextLengthExceeded,
    InvalidPrompt,
    InvalidRequest,
    InvalidSchema,
    Unsupported,
)
from ninfer_core.contract.events import Channel
from ninfer_core.contract.requests import (
    CacheRequest,
    ChatOptions,
    GenerationOptions,
    MediaPart,
    PromptInput,
    ResponseFormat,
    ToolChoice,
)
from ninfer_core.contract.sampling import SamplingParams

USER = {"role": "user", "content": "hi"}


def test_a_text_prompt_is_taken_as_it_is(frontend, raw_tokenizer):
    text = "<|im_start|>user\nhi <think>"
    prepared = frontend.prepare(PromptInput(text=text))
    assert prepared.token_ids.dtype == np.int32
    assert prepared.token_ids.tolist() == raw_tokenizer.encode(text).ids
    assert prepared.positions is None
    assert prepared.rope_delta == 0
    assert prepared.starts_in is Channel.CONTENT
    assert prepared.restore_points == ()
    assert frontend.render(PromptInput(text=text)) == text


def test_token_ids_are_taken_as_they_are(frontend):
    ids = [5, 7, frontend.vocab_size - 1]
    prepared = frontend.prepare(PromptInput(token_ids=np.array(ids)))
    assert prepared.token_ids.tolist() == ids
    assert frontend.render(PromptInput(token_ids=ids)) == frontend.detokenize(ids)


@pytest.mark.parametrize("bad", [-1, 10**6, True, 1.0, "1", None])
def test_a_wrong_token_id_is_named(frontend, bad):
    with pytest.raises(InvalidPrompt) as caught:
        frontend.prepare(PromptInput(token_ids=[1, bad]))
    assert caught.value.param == "token_ids[1]"


@pytest.mark.parametrize("field", ["messages", "text", "token_ids"])
def test_an_empty_prompt_is_named(frontend, field):
    with pytest.raises(InvalidPrompt, match="empty") as caught:
        frontend.prepare(PromptInput(**{field: "" if field == "text" else []}))
    assert caught.value.param == field


def test_a_prompt_that_renders_to_nothing_is_empty(opened, artifact):
    artifact.resources["chat_template.jinja"] = b"{% if messages %}{% endif %}"
    with pytest.raises(InvalidPrompt, match="empty"):
        opened(artifact).prepare(PromptInput(messages=[USER]))


def prompts_of(frontend, count):
    """Digits are never joined, so that one character is one token."""
    return PromptInput(text="7" * count), PromptInput(token_ids=frontend.tokenize("7") * count)


def test_the_context_is_an_exact_limit(opened, artifact):
    frontend = opened(artifact, max_context=40)
    for fits in prompts_of(frontend, 40):
        assert frontend.prepare(fits).length == 40
    for over in prompts_of(frontend, 41):
        with pytest.raises(ContextLengthExceeded) as caught:
            frontend.prepare(over)
        assert (caught.value.prompt_tokens, caught.value.max_context) == (41, 40)


def test_a_very_long_prompt_is_refused_from_its_beginning(opened, artifact):
    message = {"role": "user", "content": "the quick brown fox " * 500_000}
    with pytest.raises(ContextLengthExceeded) as caught:
        opened(artifact, max_context=1000).prepare(PromptInput(messages=[message]))
    assert 1000 < caught.value.prompt_tokens < 100_000


@pytest.mark.parametrize(
    ("messages", "chat", "channel"),
    [
        ([USER], {}, Channel.REASONING),
        ([USER], {"thinking": False}, Channel.CONTENT),
        ([{"role": "user", "content": "<think>"}], {"thinking": False}, Channel.CONTENT),
        ([{"role": "user", "content": "</think>"}], {}, Channel.REASONING),
        (
            [USER, {"role": "assistant", "content": "It is"}],
            {"continue_final": True},
            Channel.CONTENT,
        ),
        (
            [USER, {"role": "assistant", "reasoning_content": "I", "content": ""}],
            {"continue_final": True},
            Channel.REASONING,
        ),
    ],
)
def test_the_rendered_tail_says_where_the_output_starts(frontend, messages, chat, channel):
    prompt = PromptInput(messages=messages, chat=ChatOptions(**chat))
    assert frontend.prepare(prompt).starts_in is channel


def test_a_prompt_without_a_thought_mark_starts_in_content(opened, artifact):
    source = "{% for m in messages %}<think>{{ m.content }}<|im_start|>assistant\n{% endfor %}"
    artifact.resources["chat_template.jinja"] = source.encode()
    prepared = opened(artifact).prepare(PromptInput(messages=[USER]))
    assert prepared.starts_in is Channel.CONTENT


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udc00\ud800"])
def test_half_of_a_surrogate_pair_is_refused(frontend, text):
    message = {"role": "user", "content": text}
    for prompt in (PromptInput(text=text), PromptInput(messages=[message])):
        with pytest.raises(InvalidPrompt, match="surrogate"):
            frontend.prepare(prompt)
    with pytest.raises(InvalidPrompt, match="surrogate"):
        frontend.tokenize(text)


def test_identity_is_a_digest_of_tokens_and_the_template(opened, artifact, frontend):
    prompt = PromptInput(messages=[USER], cache=CacheRequest(salt="a"))
    prepared = frontend.prepare(prompt)
    packed = struct.pack(f"<{prepared.length}i", *prepared.token_ids.tolist())
    assert prepared.identity.digest == hashlib.sha256(packed).digest()
    assert prepared.identity.salt == "a"
    assert prepared.identity.media_digests == ()
    same = frontend.prepare(PromptInput(token_ids=prepared.token_ids.tolist()))
    assert same.identity.digest == prepared.identity.digest
    assert same.identity.template == prepared.identity.template
    artifact.resources["chat_template.jinja"] += b" "
    other = opened(artifact).prepare(prompt)
    assert other.identity.template != prepared.identity.template


def test_media_is_refused_by_name(frontend):
    prompt = PromptInput(messages=[USER], media=(MediaPart(kind="image", data=b"x"),))
    with pytest.raises(Unsupported) as caught:
        frontend.prepare(prompt)
    assert caught.value.param == "media[0]"


def strict(tools):
    return [{**tools[0], "function": {**tools[0]["function"], "strict": True}}, *tools[1:]]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": ResponseFormat(kind="json_object")}, "response_format"),
        ({"tool_choice": ToolChoice(mode="required")}, "tool_choice"),
        ({"tool_choice": ToolChoice(mode="named", name="search")}, "tool_choice"),
        ({"strict": True}, "tools[0].function.strict"),
    ],
)
def test_constraints_without_a_grammar_backend_are_refused_by_name(frontend, tools, fields, param):
    if fields.pop("strict", False):
        tools = strict(tools)
    with pytest.raises(Unsupported) as caught:
        frontend.prepare(PromptInput(messages=[USER], tools=tools, **fields))
    assert caught.value.param == param


def test_strict_tools_that_may_not_be_called_need_no_constraint(frontend, tools):
    prompt = PromptInput(messages=[USER], tools=strict(tools), tool_choice=ToolChoice(mode="none"))
    assert frontend.prepare(prompt).grammar is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": ToolChoice(mode="named", name="other"), "declare": True}, "tool_choice"),
        ({"tool_choice": ToolChoice(mode="required")}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0]"),
    ],
)
def test_a_choice_that_no_tool_meets_is_refused(frontend, tools, fields, param):
    if fields.pop("declare", False):
        fields = {**fields, "tools": tools}
    with pytest.raises(InvalidRequest) as caught:
        frontend.prepare(PromptInput(messages=[USER], **fields))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"chat": ChatOptions(thinking=True)}, "chat"), ({"declare": True}, "tools")],
)
def test_chat_fields_without_messages_are_refused(frontend, tools, fields, param):
    if fields.pop("declare", False):
        fields = {"tools": tools}
    with pytest.raises(InvalidRequest) as caught:
        frontend.prepare(PromptInput(text="hi", **fields))
    assert caught.value.param == param


class Compiler:
    """A grammar backend that writes down what it is asked."""

    def __init__(self, error=None):
        self.error, self.checked = error, []

    def check(self, source):
        self.checked.append(source)
        if self.error is not None:
            raise self.error


def test_with_a_backend_the_source_says_what_is_wanted(opened, artifact, tools):
    compiler = Compiler()
    frontend = opened(artifact, grammar_backend=lambda vocabulary: compiler)
    wanted = ResponseFormat(kind="json_schema", value={"type": "object"})
    prompt = PromptInput(messages=[USER], tools=tools, response_format=wanted)
    source = frontend.prepare(prompt).grammar
    assert compiler.checked == [source]
    assert source.kind == "json_schema"
    parts, framing = json.loads(source.text)["parts"], json.loads(source.framing)
    assert parts["content"]["schema"] == {"type": "object"}
    named = [item["items"][0]["value"] for item in parts["call"]["items"][1]["items"]]
    assert named == [f"<function={tool['function']['name']}>\n" for tool in tools]
    thought = framing["stages"][framing["start"]]
    close, call = frontend.tokenize("</think>"), frontend.tokenize("<tool_call>")
    assert (thought["part"], list(thought["exits"])) == (None, [str(*close)])
    layout = framing["stages"][thought["exits"][str(*close)]]
    assert parts[layout["part"]]["value"] == "\n\n"
    content = framing["stages"][layout["next"]]
    assert (content["part"], content["end"], list(content["early"])) == (
        "content",
        True,
        [str(*call)],
    )
    assert frontend.prepare(prompt).grammar == source
    silent = PromptInput(
        messages=[USER], tools=tools, response_format=wanted, chat=ChatOptions(thinking=False)
    )
    assert frontend.prepare(silent).grammar.key != source.key
    offered = frontend.prepare(PromptInput(messages=[USER], tools=tools)).grammar
    assert offered.kind == "tools"
    enforced = [
        f["items"][1]["enforce"]
        for f in json.loads(offered.text)["parts"]["call"]["items"][1]["items"]
    ]
    assert not any(enforced)
    assert frontend.prepare(PromptInput(messages=[USER])).grammar is None


def test_a_schema_error_of_the_backend_comes_through(opened, artifact):
    error = InvalidSchema("no", pointer="/type", param="response_format")
    frontend = opened(artifact, grammar_backend=lambda vocabulary: Compiler(error))
    with pytest.raises(InvalidSchema):
        frontend.prepare(
            PromptInput(messages=[USER], response_format=ResponseFormat(kind="json_object"))
        )


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"stop_token_ids": (1, 10**6)}, "stop_token_ids"),
        ({"sampling": SamplingParams(logit_bias={-1: 1.0})}, "logit_bias"),
    ],
)
def test_output_options_with_foreign_ids_are_refused(frontend, options, param):
    prepared = frontend.prepare(PromptInput(text="a"))
    with pytest.raises(InvalidRequest) as caught:
        frontend.open_output(prepared, GenerationOptions(**options), None)
    assert caught.value.param == param


def test_tokenize_and_detokenize(frontend, raw_tokenizer):
    text = "a <|im_end|> Größe"
    assert frontend.tokenize(text) == raw_tokenizer.encode(text).ids
    assert frontend.detokenize(frontend.tokenize(text)) == text
    assert frontend.detokenize(frontend.tokenize(text), skip_special=True) == "a  Größe"
    plain = frontend.tokenize(text, special=False)
    assert frontend.detokenize(plain, skip_special=True) == text
    assert b"".join(frontend.token_bytes(plain)) == text.encode()
    with pytest.raises(InvalidRequest):
        frontend.detokenize([frontend.vocab_size])


def test_a_form_with_half_of_a_surrogate_pair_is_refused(opened, artifact):
    frontend = opened(artifact, grammar_backend=lambda vocabulary: Compiler())
    wanted = ResponseFormat(kind="choice", value=["\ud800"])
    with pytest.raises(InvalidSchema, match="surrogates"):
        frontend.prepare(PromptInput(messages=[USER], response_format=wanted))
