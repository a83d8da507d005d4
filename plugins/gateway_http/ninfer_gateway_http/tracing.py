"""One OpenTelemetry span for a request, where OpenTelemetry is installed and set up."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NAMES: Final = {
    "prompt": "gen_ai.usage.input_tokens",
    "completion": "gen_ai.usage.output_tokens",
    "cached": "gen_ai.usage.cache_read.input_tokens",
    "queue_ms": "ninfer.queue_ms",
    "prefill_ms": "ninfer.prefill_ms",
    "decode_ms": "ninfer.decode_ms",
}
"""Facts of the log line and their names in a span; texts of requests are never among them.

Names: https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""


def add_tracing(app: FastAPI, model: str) -> None:
    """Trace the requests of ``app``; does nothing where OpenTelemetry is not installed.

    Where spans go is the business of the provider that OpenTelemetry was set up with, for example
    by running the server with `opentelemetry-instrument`.
    """
    if importlib.util.find_spec("opentelemetry") is not None:
        app.add_middleware(Tracing, model=model)


class Tracing:
    """Continues the caller's trace (``traceparent``) and ends the span with the reply."""

    def __init__(self, app: ASGIApp, model: str) -> None:
        self._app = app
        self._model = model
        self._trace: Any = importlib.import_module("opentelemetry.trace")
        self._propagate: Any = importlib.import_module("opentelemetry.propagate")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        span = self._trace.get_tracer("ninfer").start_span(
            f"{scope['method']} {scope['path']}",
            context=self._propagate.extract(headers),
            kind=self._trace.SpanKind.SERVER,
            attributes={"http.request.method": scope["method"], "url.path": scope["path"]},
        )

        async def send_noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                _note_status(span, self._trace, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        finally:
            if span.is_recording():
                self._describe(span, scope)
            span.end()

    def _describe(self, span: Any, scope: Scope) -> None:
        if route := getattr(scope.get("route"), "path", None):
            span.update_name(f"{scope['method']} {route}")
            span.set_attribute("http.route", route)
        facts = scope.get("state") or {}
        span.set_attribute("ninfer.request_id", scope["request_id"])
        for fact, name in _NAMES.items():
            if fact in facts:
                span.set_attribute(name, facts[fact])
        if "completion" in facts:
            span.set_attribute("gen_ai.request.model", self._model)
            span.set_attribute("gen_ai.response.finish_reasons", [str(facts["finish"])])


def _note_status(span: Any, trace: Any, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(trace.Status(trace.StatusCode.ERROR))
