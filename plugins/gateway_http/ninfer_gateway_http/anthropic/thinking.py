"""Thinking on the wire: how much of it, and the blocks that carry it."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Any, Final

from ninfer_core.contract.engine import LoadSummary
from ninfer_core.contract.errors import InvalidRequest, Unsupported
from ninfer_core.inputs.fields import Field
from ninfer_gateway_http.anthropic.reading import Notes
from ninfer_gateway_http.anthropic.schema import CountRequest, MessagesRequest

MIN_BUDGET: Final = 1024
_EFFORTS: Final = {"low": "low", "medium": "medium", "high": None, "xhigh": "xhigh", "max": "xhigh"}
"""What templates call the wire's levels; high is the default, which asks for nothing."""

_KINDS: Final = ("disabled", "adaptive", "enabled")
_BESIDE: Final = {"budget_tokens": ("enabled",), "display": ("adaptive", "enabled")}
"""What stands beside a type, and the types that it says something to."""

_SEEN: Final = b"ninfer.seen\0"
_HIDDEN: Final = b"ninfer.hidden\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """``on`` None leaves it to the template. ``forced`` means that the request demands a thought;
    ``shown`` False sends thinking blocks without their text."""

    on: bool | None = None
    forced: bool = False
    budget: int | None = None
    shown: bool = True


def thinking_of(request: CountRequest, model: LoadSummary, notes: Notes) -> Thinking:
    """Without the field there is no thinking, as in the API. Raises InvalidRequest, Unsupported."""
    field = Field(request.thinking, "thinking", InvalidRequest)
    if field.value is None:
        return Thinking(on=False if "enable_thinking" in _variables(model) else None)
    notes.check_keys(field, ("type", "budget_tokens", "display"), "thinking")
    kind = field.child("type").need(str)
    for name, kinds in _BESIDE.items():
        if kind in _KINDS and kind not in kinds and field.value.get(name) is not None:
            notes.warn(f"thinking.{name} has no effect with type {kind!r}", f"thinking.{name}")
    if kind == "disabled":
        return Thinking(on=False)
    shown = _shown(field.child("display"))
    if kind == "adaptive":
        return Thinking(on=True, shown=shown)
    if kind == "between_tools":
        raise Unsupported("thinking.type 'between_tools' is not supported", param="thinking.type")
    if kind != "enabled":
        field.child("type").fail(f"is {kind!r}; it must be disabled, enabled or adaptive")
    return Thinking(on=True, forced=True, budget=_budget(field, request), shown=shown)


def effort_of(field: Field, model: LoadSummary, notes: Notes) -> str | None:
    """The template's word for an effort. A template that knows no efforts gives a warning."""
    if field.value is None:
        return None
    if field.need(str) not in _EFFORTS:
        field.fail(f"is {field.value!r}; it must be one of {', '.join(_EFFORTS)}")
    effort = _EFFORTS[field.value]
    if effort is not None and "reasoning_effort" not in _variables(model):
        notes.warn(f"{field.path} has no effect on this model", field.path)
        return None
    return effort


def signature_of(thought: str, *, shown: bool) -> str:
    """An opaque mark for a thinking block: a digest of a thought that was shown, or the thought
    itself where its text was left out, so that a later request can bring it back."""
    raw = thought.encode(errors="surrogatepass")
    payload = _SEEN + hashlib.sha256(raw).digest() if shown else _HIDDEN + raw
    return base64.b64encode(payload).decode()


def thought_of(block: Field) -> str:
    """The text of a thinking block; a left-out text is read from the block's signature."""
    thought: str = block.child("thinking").need(str)
    signature = block.value.get("signature")
    if thought or not isinstance(signature, str):
        return thought
    try:
        payload = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        return thought
    hidden = payload.startswith(_HIDDEN)
    return payload.removeprefix(_HIDDEN).decode(errors="replace") if hidden else thought


def _budget(field: Field, request: CountRequest) -> int:
    budget: int = field.child("budget_tokens").need(int)
    if budget < MIN_BUDGET:
        field.child("budget_tokens").fail(f"is {budget}; it must be at least {MIN_BUDGET}")
    if isinstance(request, MessagesRequest) and budget >= request.max_tokens:
        field.child("budget_tokens").fail(
            f"is {budget}; it must be less than max_tokens, which is {request.max_tokens}"
        )
    return budget


def _shown(field: Field) -> bool:
    if field.value not in (None, "summarized", "omitted"):
        field.fail(f"is {field.value!r}; it must be summarized or omitted")
    return bool(field.value != "omitted")


def _variables(model: LoadSummary) -> Any:
    """What the model's chat template reads."""
    return model.details.get("frontend", {}).get("template_variables", ())
