"""What a request wants enforced, as a grammar source or as a refusal by name."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ninfer_core.contract.errors import Unsupported
from ninfer_core.contract.events import Channel
from ninfer_core.contract.frontend import GrammarSource
from ninfer_core.contract.grammar import GrammarCompiler
from ninfer_core.contract.requests import PromptInput
from ninfer_qwen3_5.frontend import vocabulary


def grammar_source(
    prompt: PromptInput, starts_in: Channel, compiler: GrammarCompiler | None
) -> GrammarSource | None:
    """The checked source of the prompt's constraint, or None without one.

    ``text`` is JSON with the response format, the tools and the tool choice; ``framing`` is JSON
    with the channel that the output starts in and the marks that part channels and calls. Raises
    Unsupported naming the field without a compiler, InvalidSchema with one.
    """
    field = constrained_field(prompt)
    if field is None:
        return None
    if compiler is None:
        raise Unsupported(
            f"{field} needs constrained decoding, which this engine was started without",
            param=field,
            hint="leave it out, or start with a grammar backend",
        )
    kind = "tools" if prompt.response_format.kind == "text" else prompt.response_format.kind
    text, framing = _dumps(_wanted(prompt)), _dumps(_framing(starts_in))
    key = hashlib.sha256("\0".join((kind, text, framing)).encode()).digest()
    source = GrammarSource(kind, text, framing, key)
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


def _wanted(prompt: PromptInput) -> dict[str, Any]:
    wanted, choice = prompt.response_format, prompt.tool_choice
    return {
        "response_format": {"kind": wanted.kind, "value": wanted.value, "strict": wanted.strict},
        "tools": list(prompt.tools),
        "tool_choice": {"mode": choice.mode, "name": choice.name, "parallel": choice.parallel},
    }


def _framing(starts_in: Channel) -> dict[str, str]:
    return {
        "starts_in": starts_in.value,
        "think_close": vocabulary.THINK_CLOSE,
        "call_open": vocabulary.CALL_OPEN,
        "call_close": vocabulary.CALL_CLOSE,
    }


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
