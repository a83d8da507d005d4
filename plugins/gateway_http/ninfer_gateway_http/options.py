"""The options of `ninfer serve`, and what they mean to the server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import typer

from ninfer_core.contract.engine import MAX_CONCURRENCY, EngineOptions
from ninfer_gateway_http.settings import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGroup:
    """Who may call, under which name, and how much at once."""

    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="Port; 0 takes a free one.")
    ] = 8080
    api_key: Annotated[
        list[str],
        typer.Option(
            metavar="KEY",
            envvar="NINFER_API_KEY",
            show_default=False,
            help="Key that callers must send; may be repeated. /health stays open.",
        ),
    ] = field(default_factory=list)
    model_id: Annotated[
        str | None, typer.Option(metavar="NAME", help="Public name in place of the model's own.")
    ] = None
    max_concurrency: Annotated[
        int, typer.Option(min=1, max=MAX_CONCURRENCY, metavar="N", help="Requests at a time.")
    ] = 1
    max_pending_requests: Annotated[
        int, typer.Option(min=0, metavar="N", help="Requests that may wait beyond those.")
    ] = 16
    pending_timeout_ms: Annotated[
        int, typer.Option(min=0, metavar="MS", help="How long a request may wait; 0 is for ever.")
    ] = 30_000
    max_gap_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            help="Longest wait of a stream while a prompt is read; fixes the chunk at start.",
        ),
    ] = None
    default_max_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Limit of answers whose request names none."),
    ] = None
    max_request_mib: Annotated[
        int, typer.Option(min=1, metavar="N", help="Largest body of a request.")
    ] = 64
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse unknown fields and limits over the context.")
    ] = False
    drain_seconds: Annotated[
        float, typer.Option(min=0, metavar="S", help="Time to finish after a stop signal.")
    ] = 30.0

    def settings(self) -> ServerSettings:
        return ServerSettings(
            model_id=self.model_id,
            api_keys=tuple(self.api_key),
            default_max_tokens=self.default_max_tokens,
            max_body_bytes=self.max_request_mib << 20,
            drain=self.drain_seconds,
            strict=self.strict,
        )

    def widen(self, options: EngineOptions) -> EngineOptions:
        """``options`` for as many requests as this server takes."""
        return replace(
            options,
            max_concurrency=self.max_concurrency,
            max_pending=self.max_pending_requests,
            max_gap_ms=self.max_gap_ms,
            queue_timeout=self.pending_timeout_ms / 1000 or None,
        )
