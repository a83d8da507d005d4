"""``structured_outputs``, the spelling of constraints that other servers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.requests import PromptInput, ResponseFormat
from ninfer_core.inputs.fields import Field
from ninfer_core.inputs.schemas import check_schema
from ninfer_gateway_http.texts import refuse_halves

FIELD: Final = "structured_outputs"
_ENGINES: Final = "response_format"
_KINDS: Final[Mapping[str, tuple[Any, type]]] = {
    "json": ("json_schema", dict),
    "json_object": ("json_object", bool),
    "regex": ("regex", str),
    "choice": ("choice", list),
    "grammar": ("grammar", str),
}


def form_names(
    prompt: PromptInput | PreparedPrompt, wanted: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """What a request that asks for no ``response_format`` calls the form of its answer, for
    :func:`ninfer_gateway_http.errors.spelled`: its ``structured_outputs``, or strict tools."""
    if asks(wanted or {}):
        return {_ENGINES: FIELD}
    asked = prompt if isinstance(prompt, PromptInput) else prompt.request
    if asked.response_format.kind != "text" or not asked.tools:
        return {}
    strict = [i for i, tool in enumerate(asked.tools) if tool["function"].get("strict")]
    return {_ENGINES: f"tools[{strict[0]}].function.parameters" if len(strict) == 1 else "tools"}


def asks(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The members that ask for a form."""
    return {name: value for name, value in wanted.items() if value not in (None, False)}


def with_structure(prompt: PromptInput, wanted: Mapping[str, Any] | None) -> PromptInput:
    """``prompt`` with the form that ``structured_outputs`` asks for, None for no form.

    Raises InvalidRequest, also beside a ``response_format`` other than text. Whether the form can
    be enforced is the engine's to say.
    """
    given = asks(wanted or {})
    if not given:
        return prompt
    if prompt.response_format.kind != "text":
        raise InvalidRequest(f"{FIELD} and response_format are both given", param=FIELD)
    return replace(prompt, response_format=_format(given))


def _format(given: Mapping[str, Any]) -> ResponseFormat:
    root = Field(given, FIELD, InvalidRequest)
    for name in given:
        if name not in _KINDS:
            root.child(name).fail("is unknown", f"known: {', '.join(_KINDS)}")
    if len(given) > 1:
        root.fail(f"holds {' and '.join(given)}; give one of them")
    ((name, value),) = given.items()
    kind, wanted = _KINDS[name]
    field = root.child(name)
    field.need(wanted)
    if name == "json":
        check_schema(value, field.path)
    if name == "choice":
        for text in field.children():
            refuse_halves(text.need(str), text.path)
    refuse_halves(value, field.path)
    return ResponseFormat(kind=kind, value=None if name == "json_object" else value)
