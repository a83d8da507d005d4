"""``GET /v1/models``, ``/health`` and ``/ready``: what is served, and whether it is."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from ninfer_core.contract.engine import AvailabilityState
from ninfer_gateway_http.documents import HealthReport, ModelCard, ModelList
from ninfer_gateway_http.gateway import Gateway

router = APIRouter(tags=["server"])
_ALIVE = frozenset({AvailabilityState.READY, AvailabilityState.DRAINING})


@router.get("/health", responses={200: {"model": HealthReport}, 503: {"model": HealthReport}})
async def health(request: Request) -> JSONResponse:
    """200 while the engine works, also while it finishes its last requests; else 503.

    ``running`` counts the requests that are being answered.
    """
    return _report(request.app.state.gateway, _ALIVE)


@router.get("/ready", responses={200: {"model": HealthReport}, 503: {"model": HealthReport}})
async def ready(request: Request) -> JSONResponse:
    """200 while new requests are accepted, else 503: also while the server is stopping."""
    return _report(request.app.state.gateway, frozenset({AvailabilityState.READY}))


@router.get("/v1/models", responses={200: {"model": ModelList}})
async def list_models(request: Request) -> dict[str, Any]:
    """The one model that is served."""
    return {"object": "list", "data": [_model(request)]}


@router.get("/v1/models/{model:path}", responses={200: {"model": ModelCard}})
async def get_model(model: str, request: Request) -> dict[str, Any]:
    """The served model, by its name."""
    request.app.state.gateway.check_model(model)
    return _model(request)


def _report(gateway: Gateway, good: frozenset[AvailabilityState]) -> JSONResponse:
    availability = gateway.engine.availability()
    state = availability.state
    body: dict[str, Any] = {
        "status": "ok" if availability.ready else state.value,
        "running": gateway.open_requests,
    }
    if availability.reason:
        body["reason"] = availability.reason
    headers = {} if state in good else {"retry-after": "5"}
    return JSONResponse(body, 200 if state in good else 503, headers=headers)


def _model(request: Request) -> dict[str, Any]:
    gateway: Gateway = request.app.state.gateway
    return {
        "id": gateway.name,
        "object": "model",
        "created": request.app.state.started,
        "owned_by": "ninfer",
        "max_model_len": gateway.model.max_context,
    }
