"""The options of `ninfer serve`, and what they mean to the server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

import typer

from ninfer_core.console import ENGINE_FLAGS, SchemaInstructionOption
from ninfer_core.contract.engine import MAX_CONCURRENCY, EngineOptions
from ninfer_gateway_http.settings import ServerSettings

FLAGS: Final = ENGINE_FLAGS | {
    "max_concurrency": "--max-concurrency",
    "max_gap_ms": "--max-gap-ms",
    "max_pending": "--max-pending-requests",
}
"""What the contract calls these options' values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGroup:
    """Where, under which name, and how much at once."""

    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="Port; 0 takes a free one.")
    ] = 8080
    model_id: Annotated[
        str | None, typer.Option(metavar="NAME", help="Public name in place of the model's own.")
    ] = None
    max_concurrency: Annotated[
        int, typer.Option(min=1, max=MAX_CONCURRENCY, metavar="N", help="Requests at a time.")
    ] = 4
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
    schema_instruction: SchemaInstructionOption = False
    max_responses: Annotated[
        int, typer.Option(min=0, metavar="N", help="Stored responses; the latest stay.")
    ] = 1024
    max_responses_mib: Annotated[
        int, typer.Option(min=0, metavar="N", help="Memory that stored responses may take.")
    ] = 256
    drain_seconds: Annotated[
        float, typer.Option(min=0, metavar="S", help="Time to finish after a stop signal.")
    ] = 30.0

    def settings(self) -> ServerSettings:
        return ServerSettings(
            model_id=self.model_id,
            default_max_tokens=self.default_max_tokens,
            max_body_bytes=self.max_request_mib << 20,
            drain=self.drain_seconds,
            max_responses=self.max_responses,
            max_response_bytes=self.max_responses_mib << 20,
            strict=self.strict,
            queue_timeout=self._queue_timeout,
        )

    def widen(self, options: EngineOptions) -> EngineOptions:
        """``options`` for as many requests as this server takes."""
        return replace(
            options,
            max_concurrency=self.max_concurrency,
            max_pending=self.max_pending_requests,
            max_gap_ms=self.max_gap_ms,
            schema_instruction=self.schema_instruction,
            queue_timeout=self._queue_timeout,
        )

    @property
    def _queue_timeout(self) -> float | None:
        """In seconds; None is for ever."""
        return self.pending_timeout_ms / 1000 or None
