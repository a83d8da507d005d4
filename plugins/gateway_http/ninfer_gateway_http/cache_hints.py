"""Fields about the prompt cache as hints to the engine's context cache."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.requests import (
    MAX_CACHE_MARKERS,
    MAX_SESSION_KEY_BYTES,
    CacheMarker,
    CacheRequest,
)

MARKS: Final = ("cache_control", "prompt_cache_breakpoint")
"""What a message or a content part carries that a cache should keep everything up to its end."""


def cache_request(
    *,
    session: str | None = None,
    salt: str | None = None,
    markers: Sequence[CacheMarker] = (),
    param: str = "messages",
) -> CacheRequest:
    """The hints. A session key longer than the engine takes stands for itself by its hash.

    Raises InvalidRequest that names ``param`` for too many markers.
    """
    if len(markers) > MAX_CACHE_MARKERS:
        raise InvalidRequest(
            f"{param} have {len(markers)} cache markers; at most {MAX_CACHE_MARKERS}", param=param
        )
    if session and len(session.encode(errors="surrogatepass")) > MAX_SESSION_KEY_BYTES:
        session = hashlib.sha256(session.encode(errors="surrogatepass")).hexdigest()
    return CacheRequest(session_key=session or None, salt=salt, markers=tuple(markers))


def markers_of(messages: Sequence[Mapping[str, Any]]) -> tuple[CacheMarker, ...]:
    """The explicit marks on messages and on their content parts, in order.

    A mark is any value but null and false; what is not a message or a part has none.
    """
    found = []
    for number, message in enumerate(messages):
        content = message.get("content")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, Mapping) and _marked(part):
                found.append(CacheMarker(message=number, part=place))
        if _marked(message):
            found.append(CacheMarker(message=number))
    return tuple(found)


def without_marks(message: Mapping[str, Any]) -> dict[str, Any]:
    """``message`` as a template should see it."""
    return {name: value for name, value in message.items() if name not in MARKS}


def _marked(holder: Mapping[str, Any]) -> bool:
    return any(holder.get(mark) not in (None, False) for mark in MARKS)
