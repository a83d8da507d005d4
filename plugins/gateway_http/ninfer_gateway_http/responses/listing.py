"""Pages of a list of items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ninfer_core.contract.errors import InvalidRequest
from ninfer_gateway_http.responses.items import Item

MAX_LIMIT: Final = 100


def page(items: Sequence[Item], *, after: str | None, limit: int, order: str) -> dict[str, Any]:
    """At most ``limit`` of ``items``, which stand oldest first, behind the item ``after``.

    ``order`` is ``asc`` or ``desc``, newest first. Raises InvalidRequest that names the parameter.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequest(
            f"limit is {limit}; it must lie between 1 and {MAX_LIMIT}", param="limit"
        )
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order is {order!r}; it must be asc or desc", param="order")
    ordered = list(items) if order == "asc" else list(reversed(items))
    start = 0
    if after is not None:
        names = [item["id"] for item in ordered]
        if after not in names:
            raise InvalidRequest(f"after: no item has the id {after!r}", param="after")
        start = names.index(after) + 1
    shown = ordered[start : start + limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": start + limit < len(ordered),
    }
