"""The chat template, under transformers' own renderer."""

from __future__ import annotations

from random import Random

import jinja2
import pytest
from transformers import AutoTokenizer

from ninfer_demo_model.tasks import EXTRA, FAMILIES, draw

HELLO = {"role": "user", "content": " Hello \n"}


@pytest.fixture(scope="module")
def render(checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def rendered(messages, **options):
        return tokenizer.apply_chat_template(messages, tokenize=False, **options)

    return rendered


def test_thinking_is_off_unless_asked_for(render):
    turn = "<|im_start|>user\nHello<|im_end|>\n"
    closed = turn + "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert render([HELLO]) == turn
    assert render([HELLO], add_generation_prompt=True) == closed
    assert render([HELLO], add_generation_prompt=True, enable_thinking=False) == closed
    opened = turn + "<|im_start|>assistant\n<think>\n"
    assert render([HELLO], add_generation_prompt=True, enable_thinking=True) == opened


def test_thoughts_are_kept_after_the_last_query_only(render):
    old = {"role": "assistant", "content": "<think>\nold\n</think>\n\nYes."}
    new = {"role": "assistant", "content": "No.", "reasoning_content": "new"}
    text = render([HELLO, old, HELLO, new])
    assert "old" not in text
    assert "<|im_start|>assistant\nYes.<|im_end|>\n" in text
    assert text.endswith("<|im_start|>assistant\n<think>\nnew\n</think>\n\nNo.<|im_end|>\n")
    assert "old" in render([HELLO, old, HELLO, new], preserve_thinking=True)


def test_tool_calls_and_results(render):
    call = {"function": {"name": "f", "arguments": {"a": "x\ny", "b": [1, "é"], "c": 2}}}
    called = {"role": "assistant", "content": "Now.", "tool_calls": [call, call]}
    results = [{"role": "tool", "content": "one"}, {"role": "tool", "content": "two"}]
    text = render([HELLO, called, *results])
    block = (
        "<tool_call>\n<function=f>\n<parameter=a>\nx\ny\n</parameter>\n<parameter=b>\n"
        '[1, "é"]\n</parameter>\n<parameter=c>\n2\n</parameter>\n</function>\n</tool_call>'
    )
    assert f"Now.\n\n{block}\n{block}<|im_end|>\n" in text
    assert text.endswith(
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n"
        "</tool_response><|im_end|>\n"
    )


def test_tools_share_the_system_turn(render):
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    text = render([{"role": "system", "content": "Be brief."}, HELLO], tools=[tool])
    assert text.count("<|im_start|>system") == 1
    head = text.partition("<|im_end|>")[0]
    listed = '{"type": "function", "function": {"name": "f", "parameters": {}}}'
    assert f"<tools>\n{listed}\n</tools>" in head
    assert head.endswith("\n\nBe brief.")


def test_images_and_videos(render):
    parts = [{"type": "image"}, {"type": "video"}, {"type": "text", "text": "See?"}]
    vision = "<|vision_start|><|{}_pad|><|vision_end|>"
    plain = vision.format("image") + vision.format("video") + "See?"
    assert plain in render([{"role": "user", "content": parts}])
    numbered = render([{"role": "user", "content": [*parts, parts[0]]}], add_vision_id=True)
    assert "Picture 1: <|vision_start|><|image_pad|>" in numbered
    assert "Video 1: " in numbered
    assert "Picture 2: " in numbered


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "no messages|empty conversation"),
        ([{"role": "system", "content": "x"}], "no user query"),
        ([{"role": "user", "content": "<tool_response>\nx\n</tool_response>"}], "no user query"),
        ([HELLO, {"role": "system", "content": "x"}], "must come first"),
        ([HELLO, {"role": "robot", "content": "x"}], "robot is unknown"),
        ([{"role": "system", "content": [{"type": "image"}]}, HELLO], "cannot hold an image"),
        ([{"role": "user", "content": [{"type": "smell"}]}], "content part"),
        (
            [HELLO, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{}"}]}],
            "must be a mapping",
        ),
    ],
)
def test_bad_conversations_are_refused(render, messages, said):
    with pytest.raises((jinja2.TemplateError, ValueError, IndexError), match=said):
        render(messages)


@pytest.mark.parametrize("family", FAMILIES + EXTRA)
@pytest.mark.parametrize("thinking", [False, True])
def test_training_text_is_the_rendered_conversation(training, render, family, thinking):
    from train.rendering import Renderer, parse_reply, target_text

    renderer, rng = Renderer(), Random(family)
    for _ in range(10):
        case = draw(family, rng, "any", thinking=thinking)
        options = {"tools": list(case.tools) or None, "enable_thinking": thinking}
        prompt = render(list(case.messages), add_generation_prompt=True, **options)
        assert renderer.prompt(case) == prompt
        target = target_text(case.reply, thinking)
        answered = {
            "role": "assistant",
            "content": case.reply.text,
            "reasoning_content": case.reply.reasoning,
            "tool_calls": [
                {"function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in case.reply.tool_calls
            ],
        }
        assert render([*case.messages, answered], **options) == prompt + target + "\n"
        read = parse_reply(target.removesuffix("<|im_end|>"), case.tools, thinking)
        assert read == case.reply
