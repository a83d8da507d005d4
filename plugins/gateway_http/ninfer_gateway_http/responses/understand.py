"""A request understood: its fields checked, its items read, its prompt put together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pydantic import BaseModel
from starlette.requests import Request

from ninfer_core.contract.errors import InvalidRequest, RequestError
from ninfer_core.contract.requests import CacheRequest, PromptInput
from ninfer_gateway_http.bodies import apart
from ninfer_gateway_http.cache_hints import cache_request
from ninfer_gateway_http.extras import refuse_warnings
from ninfer_gateway_http.gateway import Gateway
from ninfer_gateway_http.responses.items import Item, parse_input
from ninfer_gateway_http.responses.schema import PromptFields, ResponsesRequest, check_fields
from ninfer_gateway_http.responses.store import Entry, ResponseStore, Turn
from ninfer_gateway_http.responses.thoughts import is_foreign
from ninfer_gateway_http.responses.translate import to_prompt

_UNFINISHED: Final = ("queued", "in_progress")


class ResponseNotFound(RequestError):
    """No response with that id is stored."""

    code = "response_not_found"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request comes to: its items, the turn before, and the prompt of both."""

    items: list[Item]
    previous: Turn | None
    prompt: PromptInput
    warnings: tuple[str, ...]

    def turn(self, name: str, outputs: Sequence[Item]) -> Turn:
        """The turn that the response ``name`` is with ``outputs``."""
        root = self.previous.root if self.previous else name
        return Turn.of(root, self.previous, self.items, outputs)


def entry_of(store: ResponseStore, name: str, param: str = "response_id") -> Entry:
    """The stored response ``name``. Raises ResponseNotFound that names ``param``."""
    entry = store.get(name)
    if entry is None:
        raise ResponseNotFound(
            f"no response with the id {name!r} is stored",
            param=param,
            hint=f"it was never stored, was deleted, or gave way to newer ones: the latest "
            f"{store.max_responses} stay, up to {store.max_bytes >> 20} MiB in all",
        )
    return entry


async def understood(
    body: PromptFields, request: Request, store: ResponseStore, name: str | None
) -> Asked:
    """Check ``body`` and put its prompt together. ``name`` is the id of the response to be."""
    gateway: Gateway = request.app.state.gateway
    gateway.check_model(body.model)
    previous = _previous(body, store)
    # A long conversation takes its time, in which the streams of others go on. How long one is that
    # goes on from a stored response, its own body does not tell.
    work = partial(_assembled, body, previous, store, name)
    asked = await apart(request, work, long=previous is not None)
    if gateway.settings.strict:
        refuse_warnings(asked.warnings)
    return asked


def _assembled(
    body: PromptFields, previous: Turn | None, store: ResponseStore, name: str | None
) -> Asked:
    warnings = list(check_fields(body))
    _check_text(body)
    items = parse_input(body.input, store.item)
    if any(is_foreign(item) for item in items if item["type"] == "reasoning"):
        warnings.append("a thought whose encrypted_content was not made here was left out")
    history = previous.history() if previous else []
    prompt = to_prompt(body, history, items, _cache(body, previous, name))
    return Asked(items, previous, prompt, tuple(warnings))


def _cache(body: PromptFields, previous: Turn | None, name: str | None) -> CacheRequest:
    """The context cache knows a conversation by the id of its first response. A response that is
    not stored reads what the conversation left and leaves nothing under its name."""
    if not isinstance(body, ResponsesRequest):
        return CacheRequest()
    root = previous.root if previous else name
    return cache_request(session=root if body.stored else None, salt=body.cache_salt)


def _previous(body: PromptFields, store: ResponseStore) -> Turn | None:
    name = body.previous_response_id
    if name is None:
        return None
    entry = entry_of(store, name, "previous_response_id")
    if entry.status in _UNFINISHED:
        raise InvalidRequest(
            f"previous_response_id: {name!r} is still in progress", param="previous_response_id"
        )
    return entry.turn


def _check_text(body: PromptFields) -> None:
    """What is echoed must be representable. Raises InvalidRequest."""
    for name, value in _values(body):
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            raise InvalidRequest(
                f"{name} holds half a character, no finite number, or is nested too deeply",
                param=name,
            ) from None


def _values(body: PromptFields) -> Iterator[tuple[str, Any]]:
    """The fields, small models among them as objects, and the items of lists one by one."""
    for name, value in body:
        if isinstance(value, list):
            yield from ((name, item) for item in value)
        else:
            yield name, value.model_dump() if isinstance(value, BaseModel) else value
