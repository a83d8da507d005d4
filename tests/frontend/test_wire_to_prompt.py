"""From the JSON of a client to the rendered prompt."""

from __future__ import annotations

import json

from ninfer_core.contract.requests import ChatOptions, PromptInput
from ninfer_core.engine.instruction import with_schema_instruction
from ninfer_core.inputs import parse_messages, parse_prompt

KEPT = ChatOptions(template_kwargs={"preserve_thinking": True})


def rendered(frontend, messages, chat=KEPT):
    return frontend.render(PromptInput(messages=parse_messages(messages), chat=chat))


def test_reasoning_sent_back_under_either_name_reaches_the_prompt(frontend):
    def turn(**fields):
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "yes", **fields},
            {"role": "user", "content": "and?"},
        ]
        return rendered(frontend, messages)

    assert "<think>\nhm\n</think>\n\nyes" in turn(reasoning_content="hm")
    assert turn(reasoning="hm") == turn(reasoning_content="hm")
    assert turn(reasoning="hm", reasoning_content="hm") == turn(reasoning="hm")


def test_an_answer_of_the_openai_client_can_be_sent_back(frontend):
    answer = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "search", "arguments": json.dumps({"query": "x", "n": 2})},
            }
        ],
    }
    result = {"role": "tool", "tool_call_id": "call_1", "content": "found"}
    text = rendered(frontend, [{"role": "user", "content": "hi"}, answer, result], ChatOptions())
    assert "<parameter=query>\nx\n</parameter>\n<parameter=n>\n2\n</parameter>" in text
    assert "<tool_response>\nfound\n</tool_response>" in text


def test_system_and_developer_messages_of_an_agent_are_accepted(frontend):
    text = rendered(
        frontend,
        [
            {"role": "system", "content": "a"},
            {"role": "developer", "content": [{"type": "text", "text": "b"}]},
            {"role": "user", "content": "hi"},
            {"role": "system", "content": "c"},
        ],
        ChatOptions(),
    )
    assert text.startswith("<|im_start|>system\na\n\nb<|im_end|>\n")
    assert "<|im_start|>user\nc<|im_end|>\n" in text


def test_the_schema_instruction_joins_the_system_message(frontend):
    prompt = parse_prompt(
        {
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "hi"},
            ],
            "response_format": {"type": "json_object"},
        }
    )
    text = frontend.render(with_schema_instruction(prompt))
    assert text.startswith(
        "<|im_start|>system\nAnswer with one JSON object and nothing else.\n\nBe kind.<|im_end|>"
    )
