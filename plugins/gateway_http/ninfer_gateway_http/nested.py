"""Objects within a request: which members of them are known, and what becomes of any other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ninfer_core.contract.errors import InvalidRequest
from ninfer_gateway_http.cache_hints import MARKS

Shape = Mapping[str, "Shape | None"]
"""The known members of an object, each with the shape of the objects that it is or lists; None for
a member that is checked elsewhere, or is whatever the caller likes."""

_MOST: Final = 32
"""More unknown members of one request are not said."""
_INDEX: Final = re.compile(r"\[\d+\]")


def members(names: str, **inner: Shape) -> Shape:
    """``names`` without a shape, separated by blanks, and ``inner`` with one."""
    return {**dict.fromkeys(names.split()), **inner}


_PART: Final = members(f"type text {' '.join(MARKS)}")
_FUNCTION_CALL: Final = members("name arguments parsed_arguments")
# What a client's library makes of an answer comes back with it: refusal, annotations, parsed.
MESSAGE: Final = members(
    "role name tool_call_id reasoning_content reasoning refusal annotations parsed "
    f"function_call audio {' '.join(MARKS)}",
    content=_PART,
    tool_calls=members("id type index", function=_FUNCTION_CALL),
)
TOOL: Final = members("type", function=members("name description parameters strict"))
_FORMAT: Final = members("type", json_schema=members("name description schema strict"))


def choice_shape(choice: Any) -> Shape:
    """Of a ``tool_choice``, which names the function in itself or in its ``function``."""
    nested = isinstance(choice, Mapping) and isinstance(choice.get("function"), Mapping)
    return members("type", function=members("name")) if nested else members("type name")


def unknown_members(value: Any, shape: Shape, path: str) -> Iterator[str]:
    """The paths of members that ``shape`` lacks; one that is null counts as left out."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from unknown_members(item, shape, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in shape:
                if inner is not None:
                    yield f"{path}.{name}"
            elif (known := shape[name]) is not None:
                yield from unknown_members(inner, known, f"{path}.{name}")


def check_nested(request: Any, *, strict: bool) -> tuple[str, ...]:
    """Warnings about unknown members in the messages, tools, choice and form of a chat request, or
    of another with some of these fields; the same member of several objects is said once.

    Raises InvalidRequest with ``strict``.
    """
    shapes = {
        "messages": MESSAGE,
        "tools": TOOL,
        "tool_choice": choice_shape(getattr(request, "tool_choice", None)),
        "response_format": _FORMAT,
    }
    said: dict[str, str] = {}
    for name, shape in shapes.items():
        found = unknown_members(getattr(request, name, None), shape, name)
        for path in found:
            if strict:
                raise InvalidRequest(f"unknown field {path!r}", param=path, hint="leave it out")
            if len(said) == _MOST:
                break
            said.setdefault(_INDEX.sub("[]", path), f"unknown field {path!r} {_fate(path)}")
    return tuple(said.values())


def _fate(path: str) -> str:
    """Messages and tools go to the template as they are, content as its text alone."""
    shown = path.startswith(("messages[", "tools[")) and ".content[" not in path
    return "was left to the chat template" if shown else "was ignored"


def check_form(wanted: Mapping[str, Any] | None, path: str, *, member: str, instead: str) -> None:
    """Refuse a schema that stands where it does not act, as some servers take it beside
    ``json_object``: only ``member`` acts. ``instead`` says how to ask. Raises InvalidRequest."""
    given = wanted or {}
    for name in ("schema", "json_schema"):
        place = f"{path}.{name}"
        acts = given.get("type") == "json_schema" and name == member
        if given.get(name) is not None and not acts:
            raise InvalidRequest(
                f"{place} is not read beside type {given.get('type')!r:.80}",
                param=place,
                hint=f"ask for a schema with {instead}",
            )
