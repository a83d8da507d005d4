"""Reading one request: checked access to its blocks, and what is noted on the way."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.requests import MAX_CACHE_MARKERS, CacheMarker
from ninfer_core.inputs.fields import Field
from ninfer_gateway_http.extras import NeutralValues, check_extras

_LIFETIMES: Final = (None, "5m", "1h")
_NEUTRAL: Final[NeutralValues] = {
    "caller": ({"type": "direct"},),
    "citations": ([], {"enabled": False}),
    "toolset_name": (),
}


class Notes:
    """Warnings and cache marks of one request. ``strict`` makes an unknown field an error."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._warnings: dict[str, None] = {}
        self._marks = 0
        self.markers: list[CacheMarker] = []

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings)

    def warn(self, text: str, param: str) -> None:
        """Say it once. Raises InvalidRequest in a strict server."""
        if self._strict:
            raise InvalidRequest(text, param=param)
        self._warnings[text] = None

    def check_keys(self, field: Field, known: Collection[str], of: str) -> None:
        """Look for what is not ``known`` in an object; ``of`` names its kind in warnings.

        Raises Unsupported for known fields that ask for what is not served.
        """
        given = field.need(dict)
        extras = {name: value for name, value in given.items() if name not in known}
        neutral = {name: value for name, value in extras.items() if name in _NEUTRAL}
        check_extras(neutral, refused=_NEUTRAL, prefix=f"{field.path}.")
        for name in (name for name in extras if name not in neutral):
            param = f"{field.path}.{name}"
            if self._strict:
                raise InvalidRequest(f"unknown field {param!r}", param=param, hint="leave it out")
            self.warn(f"unknown field {name!r} of {of} was ignored", param)

    def mark(self, field: Field, place: CacheMarker | None) -> None:
        """Take the ``cache_control`` of a block that ends at ``place``.

        None is the end of the tools, which is kept anyhow. Raises InvalidRequest for a malformed
        mark, or one too many.
        """
        if field.value.get("cache_control") is None:
            return
        self._check_mark(field.child("cache_control"))
        self._marks += 1
        if self._marks > MAX_CACHE_MARKERS:
            field.child("cache_control").fail(
                f"is cache mark {self._marks} of the request", f"at most {MAX_CACHE_MARKERS}"
            )
        if place is not None and place not in self.markers:
            self.markers.append(place)

    def mark_end(self, field: Field, end: CacheMarker) -> None:
        """Take the request's own ``cache_control``, which marks the end of the prompt.

        Beside four marks on blocks it asks for nothing more: the end of the last message is kept
        anyhow.
        """
        if field.value is None:
            return
        self._check_mark(field)
        if end not in self.markers and len(self.markers) < MAX_CACHE_MARKERS:
            self.markers.append(end)

    def _check_mark(self, field: Field) -> None:
        self.check_keys(field, ("type", "ttl"), "cache_control")
        if field.value.get("type") != "ephemeral":
            field.child("type").fail(f"is {field.value.get('type')!r}; it must be 'ephemeral'")
        if field.value.get("ttl") not in _LIFETIMES:
            field.child("ttl").fail(f"is {field.value['ttl']!r}; it must be '5m' or '1h'")


def text_part(field: Field, notes: Notes) -> dict[str, Any]:
    """A text block as a content part."""
    notes.check_keys(field, ("type", "text", "cache_control"), "text blocks")
    return {"type": "text", "text": field.child("text").need(str)}
