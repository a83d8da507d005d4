"""Text to tokens and back, over the demo model's server."""

from __future__ import annotations

import pytest

TEXT = "Größe 日本 😀 <|im_end|> done"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer():
    """The checkpoint's own file, read by the `tokenizers` library alone."""
    from pathlib import Path

    from tokenizers import Tokenizer

    folder = Path(__file__).parents[2] / "plugins" / "demo_model" / "checkpoint"
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_a_text_has_the_tokens_of_its_tokenizer(demo, tokenizer):
    reply = demo.post("/tokenize", prompt=TEXT, model="demo").json
    expected = tokenizer.encode(TEXT, add_special_tokens=False)
    assert reply["tokens"] == expected.ids
    assert reply["count"] == len(expected.ids)
    assert reply["max_model_len"] == 1024
    assert reply["token_strs"] is None
    same = demo.post("/tokenize", prompt=TEXT, add_special_tokens=False).json
    assert same["tokens"] == reply["tokens"]
    assert demo.post("/detokenize", tokens=reply["tokens"]).json == {"prompt": TEXT}


def test_special_spellings_can_be_plain_text(demo, tokenizer):
    end = tokenizer.token_to_id("<|im_end|>")
    assert end in demo.post("/tokenize", prompt=TEXT).json["tokens"]
    plain = demo.post("/tokenize", prompt=TEXT, parse_special=False).json["tokens"]
    assert end not in plain
    assert demo.post("/detokenize", tokens=plain).json["prompt"] == TEXT


def test_token_strings_join_to_the_text(demo):
    reply = demo.post("/tokenize", prompt="Hello, world.", return_token_strs=True).json
    assert "".join(reply["token_strs"]) == "Hello, world."
    assert len(reply["token_strs"]) == reply["count"]


def test_messages_are_rendered_as_for_an_answer(demo):
    for fields in ({}, {"chat_template_kwargs": {"enable_thinking": True}}):
        counted = demo.post("/tokenize", messages=HELLO, **fields).json
        asked = demo.post(
            "/v1/chat/completions", messages=HELLO, max_tokens=0, return_token_ids=True, **fields
        ).json
        assert counted["tokens"] == asked["prompt_token_ids"]
        assert counted["count"] == asked["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": [{"role": "wizard", "content": ""}]}, "messages[0].role"),
        (
            "/tokenize",
            {"messages": HELLO, "add_generation_prompt": False},
            "add_generation_prompt",
        ),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_a_wrong_field_is_named(demo, path, body, param):
    reply = demo.post(path, **body)
    assert (reply.status, reply.error["param"]) == (400, param)


def test_unknown_fields_and_models_are_said(demo):
    reply = demo.post("/tokenize", prompt="a", colour="red")
    assert "unknown field 'colour'" in reply.headers["x-ninfer-warning"]
    assert demo.post("/detokenize", tokens=[1], model="gpt-9").status == 404
