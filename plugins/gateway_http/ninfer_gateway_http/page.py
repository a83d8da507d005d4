"""``GET /``: a page to talk to the model with; one document, which asks this server alone."""

from __future__ import annotations

import base64
import functools
import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

router = APIRouter()
_SCRIPTS: Final = ("markdown.js", "view.js", "chat.js")


@dataclass(frozen=True, slots=True)
class Page:
    """The document in UTF-8 and the headers that it is sent with."""

    body: bytes
    headers: dict[str, str]


@functools.cache
def chat_page() -> Page:
    """The page with its style and scripts in place. Its policy lets the browser run this very
    script and no other, and talk to this server alone."""
    script = "\n".join(["'use strict';", *map(_read, _SCRIPTS)])
    text = _read("page.html").replace("/*STYLE*/", _read("page.css"))
    text = text.replace("/*SCRIPT*/", script)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Page(text.encode(), headers)


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """The chat page."""
    found = chat_page()
    return Response(found.body, headers=found.headers)


def _read(name: str) -> str:
    return resources.files(__package__).joinpath("static", name).read_text(encoding="utf-8")
