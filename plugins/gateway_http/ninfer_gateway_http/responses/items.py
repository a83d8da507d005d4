"""Input items: checked, in one canonical form, each with an id."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from ninfer_core.contract.errors import Unsupported
from ninfer_core.inputs.fields import Field
from ninfer_gateway_http.nested import Shape, members
from ninfer_gateway_http.responses.schema import refuse_unknown

Item = dict[str, Any]
Lookup = Callable[[str], Item | None]
"""A stored item by its id."""

STATUSES: Final = ("in_progress", "completed", "incomplete")
_ROLES: Final = ("user", "system", "developer", "assistant")
_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
}
# With what answers carry, which comes back: annotations, log-probabilities, what a client parsed.
_TEXT: Final = members("type text annotations logprobs parsed refusal prompt_cache_breakpoint")
_THOUGHT: Final = members("type text")
_SHAPES: Final[Mapping[str, Shape]] = {
    "message": members("type id status role phase", content=_TEXT),
    "reasoning": members("type id status encrypted_content", summary=_THOUGHT, content=_THOUGHT),
    "function_call": members("type id status call_id name arguments parsed_arguments"),
    "function_call_output": members("type id status call_id name", output=_TEXT),
}
_UNSERVED_PARTS: Final = ("input_image", "input_video", "input_file", "input_audio")
_UNSERVED_ITEMS: Final = frozenset(
    "additional_tools apply_patch_call apply_patch_call_output code_interpreter_call compaction "
    "compaction_trigger computer_call computer_call_output custom_tool_call "
    "custom_tool_call_output file_search_call image_generation_call local_shell_call "
    "local_shell_call_output mcp_approval_request mcp_approval_response mcp_call mcp_list_tools "
    "program program_output shell_call shell_call_output tool_search_call tool_search_output "
    "web_search_call".split()
)


def new_id(prefix: str) -> str:
    """A fresh id such as ``msg_4f…``."""
    return f"{prefix}_{uuid.uuid4().hex}"


def parse_input(value: Any, lookup: Lookup) -> list[Item]:
    """The items of ``input``: text is one user message; references are replaced by ``lookup``.

    Raises InvalidPrompt or Unsupported naming the field (``input[2].content[0].type``).
    """
    root = Field(value, "input")
    if isinstance(value, str):
        return [_message(Field({"role": "user", "content": value}, "input"))]
    if value is None:
        root.fail("is missing; it must be text or a list of items")
    if not isinstance(value, list):
        root.need(list, "text or a list of items")
    if not value:
        root.fail("is empty; give at least one item")
    return [_item(field, lookup) for field in root.children()]


def _item(field: Field, lookup: Lookup) -> Item:
    given = field.need(dict)
    kind = given.get("type", "message" if "role" in given else None)
    if kind == "item_reference" or (kind is None and given.keys() == {"id"}):
        return _referred(field, lookup)
    if not isinstance(kind, str):
        field.child("type").fail(f"is {kind!r:.80}; it must be one of {', '.join(_PARSERS)}")
    if kind in _UNSERVED_ITEMS:
        path = f"{field.path}.type"
        raise Unsupported(f"{path} {kind!r} is not supported by this server", param=path)
    parse = _PARSERS.get(kind)
    if parse is None:
        field.child("type").fail(f"is {kind!r:.80}; it must be one of {', '.join(_PARSERS)}")
    item = parse(field)
    refuse_unknown(given, _SHAPES[kind], field.path)
    return item


def _referred(field: Field, lookup: Lookup) -> Item:
    refuse_unknown(field.value, members("type id"), field.path)
    name = field.child("id").need(str)
    item = lookup(name)
    if item is None:
        field.child("id").fail(f"{name!r} is not among the stored items")
    return item


def _message(field: Field) -> Item:
    role = field.value.get("role")
    if role not in _ROLES:
        field.child("role").fail(f"is {role!r}; it must be one of {', '.join(_ROLES)}")
    by_model = role == "assistant"
    content = _parts(field.child("content"), "output_text" if by_model else "input_text")
    item = _begin(field, "message") | {"role": role, "content": content}
    if isinstance(field.value.get("phase"), str):
        item["phase"] = field.value["phase"]
    return item


def _parts(field: Field, kind: str) -> list[Item]:
    """Content as parts of ``kind``; text stands for one part."""
    if isinstance(field.value, str):
        return [_text_part(kind, field.value)]
    if not isinstance(field.value, list):
        field.need(list, "text or a list of parts")
    return [_part(part, kind) for part in field.children()]


def _part(field: Field, kind: str) -> Item:
    found = field.need(dict).get("type")
    path = f"{field.path}.type"
    if found in _UNSERVED_PARTS:
        raise Unsupported(
            f"{path} is {found!r}; this server serves text only", param=path, hint="leave it out"
        )
    if found == "refusal" and kind == "output_text":
        return _text_part(kind, field.child("refusal").need(str))
    if found not in ("input_text", "output_text", "text"):
        field.child("type").fail(f"is {found!r}; it must be {kind!r}")
    return _text_part(kind, field.child("text").need(str))


def _text_part(kind: str, text: str) -> Item:
    part: Item = {"type": kind, "text": text}
    return part | {"annotations": []} if kind == "output_text" else part


def _reasoning(field: Field) -> Item:
    item = _begin(field, "reasoning")
    item["summary"] = _thoughts(field.child("summary"), "summary_text")
    item["content"] = _thoughts(field.child("content"), "reasoning_text")
    if field.value.get("encrypted_content") is not None:
        item["encrypted_content"] = field.child("encrypted_content").need(str)
    return item


def _thoughts(field: Field, kind: str) -> list[Item]:
    if field.value is None:
        return []
    parts = []
    for part in field.children():
        found = part.need(dict).get("type", kind)
        if found not in (kind, "text"):
            part.child("type").fail(f"is {found!r}; it must be {kind!r}")
        parts.append({"type": kind, "text": part.child("text").need(str)})
    return parts


def _call(field: Field) -> Item:
    item = _begin(field, "function_call")
    for name in ("call_id", "name"):
        if not field.child(name).need(str):
            field.child(name).fail("is empty")
        item[name] = field.value[name]
    item["arguments"] = field.child("arguments").need(str)
    if item["status"] == "completed":
        _check_arguments(field.child("arguments"))
    return item


def _check_arguments(field: Field) -> None:
    try:
        value = json.loads(field.value) if field.value.strip() else {}
    except (ValueError, RecursionError) as error:
        field.fail(f"is not valid JSON: {error}")
    if not isinstance(value, dict):
        field.fail("must be a JSON object as text")


def _call_output(field: Field) -> Item:
    item = _begin(field, "function_call_output")
    item["call_id"] = field.child("call_id").need(str)
    output = field.child("output")
    item["output"] = output.value if isinstance(output.value, str) else _parts(output, "input_text")
    return item


def _begin(field: Field, kind: str) -> Item:
    """Type, id and status; all three may be left out by the caller."""
    given = field.value
    if given.get("id") is not None and not field.child("id").need(str):
        field.child("id").fail("is empty")
    status = given.get("status") or "completed"
    if status not in STATUSES:
        field.child("status").fail(f"is {status!r}; it must be one of {', '.join(STATUSES)}")
    return {"type": kind, "id": given.get("id") or new_id(_PREFIXES[kind]), "status": status}


_PARSERS: Final[Mapping[str, Callable[[Field], Item]]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _call,
    "function_call_output": _call_output,
}
