"""Tools and the choice among them, in the shape of the engine's input rules."""

from __future__ import annotations

from typing import Any, Final

from ninfer_core.contract.errors import InvalidRequest, Unsupported
from ninfer_core.inputs.fields import Field
from ninfer_gateway_http.anthropic.reading import Notes
from ninfer_gateway_http.extras import NeutralValues, check_extras
from ninfer_gateway_http.texts import refuse_halves

_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_KNOWN: Final = frozenset(
    "type name description input_schema input_examples strict cache_control eager_input_streaming "
    "allowed_callers defer_loading".split()
)
_REFUSED: Final[NeutralValues] = {"allowed_callers": (["direct"],), "defer_loading": (False,)}


def function_tools(tools: list[dict[str, Any]] | None, notes: Notes) -> list[dict[str, Any]] | None:
    """Custom tools as functions. Raises InvalidRequest, or Unsupported for any other tool."""
    if tools is None:
        return None
    return [_function(f, notes) for f in Field(tools, "tools", InvalidRequest).children()]


def function_choice(
    choice: dict[str, Any] | None, notes: Notes
) -> tuple[str | dict[str, Any] | None, bool]:
    """The choice, and whether several calls are allowed."""
    if choice is None:
        return None, True
    field = Field(choice, "tool_choice", InvalidRequest)
    notes.check_keys(field, ("type", "name", "disable_parallel_tool_use"), "tool_choice")
    single = field.child("disable_parallel_tool_use")
    if single.value is not None:
        single.need(bool)
    kind = field.child("type").need(str)
    if kind in _CHOICES:
        if field.value.get("name") is not None:
            notes.warn(f"tool_choice.name has no effect with type {kind!r}", "tool_choice.name")
        return _CHOICES[kind], not single.value
    if kind != "tool":
        field.child("type").fail(f"is {kind!r}; it must be auto, any, tool or none")
    name = field.child("name").need(str)
    return {"type": "function", "function": {"name": name}}, not single.value


def _function(field: Field, notes: Notes) -> dict[str, Any]:
    given = field.need(dict)
    kind = given.get("type") or "custom"
    if kind != "custom":
        raise Unsupported(
            f"{field.path}.type is {kind!r}; only custom tools are supported",
            param=f"{field.path}.type",
            hint="declare it with a name and an input_schema",
        )
    notes.check_keys(field, _KNOWN, "tools")
    asked = {name: given[name] for name in _REFUSED if name in given}
    check_extras(asked, refused=_REFUSED, prefix=f"{field.path}.")
    field.child("input_schema").need(dict)
    refuse_halves(given, field.path)
    notes.mark(field, None)
    function = {
        "name": given.get("name"),
        "description": given.get("description"),
        "parameters": given["input_schema"],
        "strict": given.get("strict"),
        "input_examples": given.get("input_examples"),
    }
    kept = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": kept}
