"""The family's tool-call form as a part of a constraint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer_core.contract.requests import PromptInput
from ninfer_qwen3_5.frontend.tags import (
    FUNCTION_CLOSE,
    FUNCTION_OPEN,
    PARAMETER_CLOSE,
    PARAMETER_OPEN,
)


def call_part(prompt: PromptInput) -> dict[str, Any]:
    """What stands between the marks of one call: a declared function, its parameters in the
    declared order.

    Arguments follow their schema if the tool is strict. Where a call is demanded they do too,
    unless the tool is said not to be strict or its schema cannot be enforced.
    """
    choice = prompt.tool_choice
    demanded = choice.mode in ("required", "named")
    functions = []
    for index, tool in enumerate(prompt.tools):
        function = tool.get("function") or tool
        if choice.mode != "named" or function["name"] == choice.name:
            functions.append(_function(function, index, demanded))
    return {
        "kind": "seq",
        "items": [
            _text("\n"),
            {"kind": "alt", "items": functions},
            _text(f"{FUNCTION_CLOSE}\n"),
        ],
    }


def _function(function: Mapping[str, Any], index: int, demanded: bool) -> dict[str, Any]:
    strict = function.get("strict")
    return {
        "kind": "seq",
        "items": [
            _text(f"{FUNCTION_OPEN}{function['name']}>\n"),
            {
                "kind": "members",
                "schema": function.get("parameters") or {"type": "object", "properties": {}},
                "param": f"tools[{index}].function.parameters",
                "before": [PARAMETER_OPEN, ">\n"],
                "after": f"\n{PARAMETER_CLOSE}\n",
                "tags": [PARAMETER_CLOSE, PARAMETER_OPEN, FUNCTION_CLOSE],
                "enforce": None if strict is None and demanded else bool(strict),
            },
        ],
    }


def _text(value: str) -> dict[str, Any]:
    return {"kind": "text", "value": value}
