"""Plug-in `gateway_http`: the HTTP server and its command."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import hookimpl
from ninfer_core.hookspecs import CommandEntry


@hookimpl
def ninfer_commands() -> Iterable[CommandEntry]:
    """Offer `ninfer serve`."""
    yield CommandEntry(
        name="serve",
        help="Serve a model over HTTP with OpenAI's and Anthropic's APIs.",
        load="ninfer_gateway_http.command:serve_app",
    )
