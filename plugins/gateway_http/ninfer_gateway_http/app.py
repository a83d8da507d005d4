"""The application: routes, and rules for every route."""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from ninfer_core import __version__
from ninfer_core.contract.engine import EngineLike
from ninfer_gateway_http.anthropic.routes import router as messages
from ninfer_gateway_http.chat import router as chat
from ninfer_gateway_http.completions import router as completions
from ninfer_gateway_http.documents import ERRORS
from ninfer_gateway_http.failures import add_failures
from ninfer_gateway_http.gateway import Gateway
from ninfer_gateway_http.metrics import router as metrics
from ninfer_gateway_http.middleware import ApiKey, BodyLimit, HeadAsGet, HeaderLimit
from ninfer_gateway_http.models import router as models
from ninfer_gateway_http.page import chat_page
from ninfer_gateway_http.page import router as page
from ninfer_gateway_http.request_log import RequestLog
from ninfer_gateway_http.responses.routes import router as responses
from ninfer_gateway_http.settings import ServerSettings
from ninfer_gateway_http.tokenize import router as tokens
from ninfer_gateway_http.tracing import add_tracing


def create_app(engine: EngineLike, settings: ServerSettings | None = None) -> FastAPI:
    """The ASGI application that serves ``engine``; the caller closes the engine."""
    settings = settings or ServerSettings()
    # Its own telemetry, of versions that have one, would report what a refused body says.
    quiet: Any = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans"), False)
    app = FastAPI(title="NInfer", version=__version__, responses=ERRORS, telemetry=quiet)
    app.state.gateway = Gateway(engine, settings)
    app.state.started = int(time.time())
    app.include_router(chat)
    app.include_router(completions)
    app.include_router(messages)
    app.include_router(responses)
    app.include_router(tokens)
    app.include_router(models)
    app.include_router(metrics)
    app.include_router(page)
    _add_rules(app, settings)
    add_tracing(app, app.state.gateway.name)
    add_failures(app)
    return app


def _add_rules(app: FastAPI, settings: ServerSettings) -> None:
    """From the inside out: what is added last sees a request first."""
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes, seconds=settings.receive_timeout)
    if settings.api_keys:
        app.add_middleware(ApiKey, keys=settings.api_keys, door=chat_page())
    app.add_middleware(HeadAsGet)
    app.add_middleware(HeaderLimit)
    if settings.cors_origins:
        # Outside the key: a browser asks beforehand, without one, whether it may send it.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after", "x-ninfer-warning"],
        )
    app.add_middleware(
        RequestLog, replies=app.state.gateway.metrics.replies, bodies=settings.log_prompts
    )
