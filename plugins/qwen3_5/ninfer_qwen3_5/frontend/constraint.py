"""What a request wants enforced, as a grammar source or as a refusal by name."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ninfer_core.contract.errors import InvalidRequest, InvalidSchema, Unsupported
from ninfer_core.contract.events import Channel
from ninfer_core.contract.frontend import GrammarSource
from ninfer_core.contract.grammar import GrammarCompiler
from ninfer_core.contract.requests import GenerationOptions, PromptInput, ResponseFormat
from ninfer_qwen3_5.frontend.call_form import call_part
from ninfer_qwen3_5.frontend.stages import Answer, output_stages
from ninfer_qwen3_5.frontend.vocabulary import Vocabulary

_JSON = ("json_object", "json_schema")


def grammar_source(
    prompt: PromptInput,
    starts_in: Channel,
    vocabulary: Vocabulary,
    compiler: GrammarCompiler | None,
    prefix: str = "",
) -> GrammarSource | None:
    """The checked source of the prompt's constraint, or None without one.

    ``prefix`` is what the prompt holds of the answer already. Tools that may be called constrain
    the framing and the names of calls, if there is a compiler. Raises Unsupported naming the field
    where a constraint is asked for without a compiler, or with another that excludes it;
    InvalidSchema with one.
    """
    field, calls = constrained_field(prompt), calls_wanted(prompt)
    if field is None and (compiler is None or not calls):
        return None
    if compiler is None:
        raise Unsupported(
            f"{field} needs constrained decoding, which this engine was started without",
            param=field,
            hint="leave it out, or install ninfer-grammar-xgrammar",
        )
    wanted = prompt.response_format
    if calls and wanted.kind not in ("text", *_JSON):
        raise Unsupported(
            f"response_format of kind {wanted.kind} cannot be combined with tools",
            param="response_format",
            hint="set tool_choice to none, or ask for JSON",
        )
    source = _source(prompt, starts_in, vocabulary, prefix)
    compiler.check(source)
    return source


def constrained_field(prompt: PromptInput) -> str | None:
    """The first field that asks for more than free text."""
    if prompt.response_format.kind != "text":
        return "response_format"
    if prompt.tool_choice.mode in ("required", "named"):
        return "tool_choice"
    if prompt.tool_choice.mode == "none":
        return None
    for index, tool in enumerate(prompt.tools):
        if (tool.get("function") or {}).get("strict"):
            return f"tools[{index}].function.strict"
    return None


def may_constrain(prompt: PromptInput, options: GenerationOptions) -> bool:
    """Whether the output is constrained under ``options``, which must not end or extend it against
    its form. Calls that were only offered give way to such options. Raises InvalidRequest."""
    against = {
        "stop": options.stop,
        "stop_token_ids": options.stop_token_ids,
        "min_tokens": options.min_tokens,
        "ignore_eos": options.ignore_eos,
    }
    field = constrained_field(prompt)
    given = next((name for name, value in against.items() if value), None)
    if field is None:
        return not (options.ignore_eos or options.min_tokens)
    if given is not None:
        raise InvalidRequest(
            f"{given} cannot be combined with {field}: the output ends where its form is whole",
            param=given,
            hint="leave it out",
        )
    return True


def calls_wanted(prompt: PromptInput) -> bool:
    """Whether the answer may hold calls."""
    return bool(prompt.tools) and prompt.messages is not None and prompt.tool_choice.mode != "none"


def _source(
    prompt: PromptInput, starts_in: Channel, vocabulary: Vocabulary, prefix: str
) -> GrammarSource:
    calls, must_call = calls_wanted(prompt), prompt.tool_choice.mode in ("required", "named")
    parts: dict[str, Any] = {}
    content = None if must_call and calls else _content(prompt.response_format)
    if content is not None:
        parts["content"] = content
    if calls:
        parts["call"] = call_part(prompt)
    answer = Answer(
        content=content is not None,
        calls=calls,
        must_call=must_call,
        parallel=prompt.tool_choice.parallel,
        may_think=starts_in is Channel.CONTENT and prompt.chat.thinking is not False,
    )
    framing = output_stages(answer, starts_in, vocabulary, parts)
    if prefix and content is not None and starts_in is Channel.CONTENT:
        framing["prefix"] = prefix
    kind = "tools" if content is None else prompt.response_format.kind
    text, frame = _written(prompt, {"parts": parts}), _dumps(framing)
    key = hashlib.sha256("\0".join((kind, text, frame)).encode()).digest()
    return GrammarSource(kind, text, frame, key)


def _content(wanted: ResponseFormat) -> dict[str, Any] | None:
    param = "response_format"
    match wanted.kind:
        case "text":
            return None
        case "json_object":
            return {"kind": "json_object", "param": param}
        case "json_schema":
            return {
                "kind": "json_schema",
                "schema": wanted.value,
                "param": param,
                "closed": wanted.strict,
            }
        case "grammar":
            return {"kind": "grammar", "source": wanted.value, "param": param}
        case "regex":
            return {"kind": "regex", "pattern": wanted.value, "param": param}
        case "choice":
            return {"kind": "choice", "values": list(wanted.value), "param": param}


def _written(prompt: PromptInput, parts: Any) -> str:
    """Raises InvalidSchema for what is not JSON, nested too deeply to be written as such, or holds
    half of a surrogate pair."""
    try:
        text = _dumps(parts)
        text.encode()
        return text
    except (RecursionError, TypeError, ValueError) as error:
        deep = isinstance(error, RecursionError)
        why = "is nested too deeply; make it flatter" if deep else f"is no JSON: {error}"
        field = "tools" if prompt.response_format.kind == "text" else "response_format"
        raise InvalidSchema(f"{field} {why}", param=field) from None


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
