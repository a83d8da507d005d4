"""Tool declarations and the choice among them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ninfer_core.contract.errors import InvalidRequest, Unsupported
from ninfer_core.contract.requests import JsonObject, ToolChoice
from ninfer_core.inputs.fields import Field
from ninfer_core.inputs.schemas import check_object_schema

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def parse_tools(tools: Any, field: str = "tools") -> tuple[dict[str, Any], ...]:
    """Check tools in the OpenAI shape ``{"type": "function", "function": {…}}``; none for null.

    They are passed on as given, because templates show them to the model. Raises InvalidRequest,
    InvalidSchema (``param`` is ``tools[i].function.parameters``, ``pointer`` the place within), or
    Unsupported for another type of tool.
    """
    if tools is None:
        return ()
    root = Field(tools, field, InvalidRequest)
    parsed = tuple(_tool(entry) for entry in root.children())
    seen: set[str] = set()
    for index, tool in enumerate(parsed):
        name = tool["function"]["name"]
        if name in seen:
            root.children()[index].child("function").child("name").fail(f"{name!r} is taken twice")
        seen.add(name)
    return parsed


def parse_tool_choice(
    choice: Any, tools: Sequence[JsonObject], *, parallel: bool = True, field: str = "tool_choice"
) -> ToolChoice:
    """``auto``, ``none``, ``required`` or an object that names a function; null is ``auto``.

    Raises InvalidRequest for another value, a name that no tool has, or a demand without tools.
    """
    root = Field(choice, field, InvalidRequest)
    if choice is None or choice in ("auto", "none"):
        return ToolChoice(mode=choice or "auto", parallel=parallel)
    if not tools:
        root.fail("demands a call, but there are no tools")
    if choice == "required":
        return ToolChoice(mode="required", parallel=parallel)
    return ToolChoice(mode="named", name=_chosen_name(root, tools), parallel=parallel)


def _tool(field: Field) -> dict[str, Any]:
    tool: dict[str, Any] = field.need(dict)
    kind = tool.get("type", "function")
    if kind != "function":
        raise Unsupported(
            f"{field.path}.type is {kind!r}; only functions are supported",
            param=f"{field.path}.type",
        )
    function = field.child("function")
    function.need(dict)
    name = function.child("name")
    if NAME.fullmatch(name.need(str)) is None:
        name.fail(f"is {name.value!r}; names have 1 to 64 letters, digits, '_' or '-'")
    for key, wanted in (("description", str), ("strict", bool)):
        if function.value.get(key) is not None:
            function.child(key).need(wanted)
    if function.value.get("parameters") is not None:
        check_object_schema(function.value["parameters"], f"{function.path}.parameters")
    return tool


def _chosen_name(field: Field, tools: Sequence[JsonObject]) -> str:
    if isinstance(field.value, str):
        field.fail(f"is {field.value!r}; it must be auto, none, required or name a function")
    chosen = field.need(dict, "auto, none, required or an object that names a function")
    if chosen.get("type") != "function":
        raise Unsupported(
            f"{field.path}.type is {chosen.get('type')!r}; only functions can be chosen",
            param=f"{field.path}.type",
        )
    nested = field.child("function")
    name = (nested if isinstance(nested.value, dict) else field).child("name")
    known = [tool["function"]["name"] for tool in tools]
    if name.need(str) not in known:
        name.fail(f"is {name.value!r}; the tools are {', '.join(known)}")
    return str(name.value)
