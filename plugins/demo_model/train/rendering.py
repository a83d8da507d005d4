"""From a case to token ids: the rendered prompt, and the assistant text that training predicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from ninfer_demo_model.tasks import Case, Reply, ToolCall
from ninfer_demo_model.tasks.case import Message

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
END_OF_TURN = "<|im_end|>"


class Renderer:
    """The chat template, compiled once with the semantics that transformers gives templates."""

    def __init__(self, source: str | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        self._template = environment.from_string(source or TEMPLATE.read_text("utf-8"))

    def prompt(self, case: Case) -> str:
        """The conversation up to and with the opened assistant turn."""
        return self.conversation(case.messages, case.tools, thinking=case.thinking)

    def conversation(
        self, messages: Sequence[Message], tools: Sequence[Any] = (), *, thinking: bool
    ) -> str:
        """Any conversation up to and with the opened assistant turn."""
        return self._template.render(
            messages=list(messages),
            tools=list(tools) or None,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )


class Encoder:
    """Turn a case into (token ids, number of prompt ids); the rest is the assistant's turn."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._renderer = Renderer()

    def encode(self, case: Case) -> tuple[list[int], int]:
        """Ids of prompt and reply, through `<|im_end|>`."""
        prompt = self.ids(self._renderer.prompt(case))
        return prompt + self.ids(target_text(case.reply, case.thinking)), len(prompt)

    def prompt_ids(self, case: Case) -> list[int]:
        """Ids of the prompt alone."""
        return self.ids(self._renderer.prompt(case))

    def ids(self, text: str) -> list[int]:
        """Ids of any text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def target_text(reply: Reply, thinking: bool) -> str:
    """What the assistant generates after the prompt, with the end of its turn."""
    thought = f"{reply.reasoning}\n</think>\n\n" if thinking else ""
    calls = "\n".join(_call_text(call) for call in reply.tool_calls)
    gap = "\n\n" if reply.text and calls else ""
    return f"{thought}{reply.text}{gap}{calls}{END_OF_TURN}"


def _call_text(call: ToolCall) -> str:
    shown = {k: v if isinstance(v, str) else json.dumps(v) for k, v in call.arguments.items()}
    given = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in shown.items())
    return f"<tool_call>\n<function={call.name}>\n{given}</function>\n</tool_call>"


def parse_reply(text: str, tools: tuple[Mapping[str, Any], ...], thinking: bool) -> Reply:
    """Read generated text (without the end of turn) back into a reply."""
    reasoning, content = "", text
    if thinking:
        reasoning, _, content = text.partition("</think>")
    content, *blocks = content.split("<tool_call>")
    calls = tuple(_parsed_call(block, tools) for block in blocks)
    return Reply(content.strip(), reasoning.strip(), calls)


def _parsed_call(block: str, tools: tuple[Mapping[str, Any], ...]) -> ToolCall:
    body = block.partition("</function>")[0]
    head, *given = body.split("<parameter=")
    name = head.partition("<function=")[2].partition(">")[0]
    arguments: dict[str, Any] = {}
    for item in given:
        key, _, rest = item.partition(">")
        value = rest.partition("</parameter>")[0].removeprefix("\n").removesuffix("\n")
        arguments[key] = _typed(value, key, name, tools)
    return ToolCall(name, arguments)


def _typed(value: str, key: str, name: str, tools: tuple[Mapping[str, Any], ...]) -> Any:
    for tool in tools:
        function = tool["function"]
        if function["name"] == name:
            kind = function["parameters"]["properties"].get(key, {}).get("type", "string")
            try:
                return value if kind == "string" else json.loads(value)
            except ValueError:
                return value
    return value


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
