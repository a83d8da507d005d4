"""``/v1/responses`` and the routes below it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from ninfer_core.contract.errors import InvalidRequest, RequestError, Unsupported
from ninfer_gateway_http import sse
from ninfer_gateway_http.bodies import BodyRoute
from ninfer_gateway_http.errors import ErrorReply, error_reply, on_the_wire, spelled
from ninfer_gateway_http.extras import refuse_clamped
from ninfer_gateway_http.gateway import Gateway
from ninfer_gateway_http.responses.background import Background, nobody_leaves
from ninfer_gateway_http.responses.documents import (
    CREATED,
    Deleted,
    InputTokens,
    ItemList,
    ResponseObject,
    answers,
)
from ninfer_gateway_http.responses.listing import page
from ninfer_gateway_http.responses.output import Output
from ninfer_gateway_http.responses.reply import ResponseWriter, logprob_rows
from ninfer_gateway_http.responses.run import Run
from ninfer_gateway_http.responses.schema import (
    ENCRYPTED,
    PromptFields,
    ResponsesRequest,
    UnknownParameter,
)
from ninfer_gateway_http.responses.store import Entry, ResponseStore
from ninfer_gateway_http.responses.translate import renamed, to_options
from ninfer_gateway_http.responses.understand import ResponseNotFound, entry_of, understood
from ninfer_gateway_http.streams import started, warning_header
from ninfer_gateway_http.structured import form_names

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class NamedErrors(BodyRoute):
    """Errors name fields as the Responses API does."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def handle_named(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestError as error:
                reply = _reply(error)
                return JSONResponse(reply.body(), reply.status, headers=reply.headers)

        return handle_named


router = APIRouter(prefix="/v1/responses", route_class=NamedErrors, tags=["responses"])


@dataclass(frozen=True, slots=True)
class Kept:
    """What the routes share: finished responses, and those in progress that nobody waits for."""

    store: ResponseStore
    background: Background = field(default_factory=Background)


@router.post("", response_model=None, responses=CREATED)
async def create_response(body: ResponsesRequest, request: Request) -> Response:
    """Answer ``input``, as a stream of events when ``stream`` is true."""
    gateway: Gateway = request.app.state.gateway
    kept = _kept(request)
    options = to_options(body, gateway.model, gateway.settings.default_max_tokens)
    writer = ResponseWriter(body, gateway.name, options)
    asked = await understood(body, request, kept.store, writer.id)
    receive = nobody_leaves if _in_background(body) else request.receive
    async with AsyncExitStack() as owner:
        with spelled(form_names(asked.prompt)):
            exchange = await owner.enter_async_context(
                gateway.exchange(asked.prompt, options, receive)
            )
        rows = partial(logprob_rows, token_bytes=gateway.engine.token_bytes)
        output = Output(
            rows if body.wants_logprobs else None, pack=ENCRYPTED in (body.include or ())
        )
        store = kept.store if body.stored else None
        run = Run(writer, output, exchange, asked, store, request.scope["state"])
        if body.background:
            queued = kept.background.start(run, owner.pop_all())
            return JSONResponse(queued, headers=warning_header(asked.warnings))
        start = await started(exchange)
        notes = [renamed(on_the_wire(note)) for note in start.notes]
        if gateway.settings.strict:
            refuse_clamped(notes)
        headers = warning_header((*asked.warnings, *notes))
        if not body.stream:
            return JSONResponse(await run.whole(), headers=headers)
        return sse.EventStream(run.events(gateway.settings.keep_alive), owner.pop_all(), headers)


@router.post("/input_tokens", response_model=None, responses=answers(InputTokens))
async def count_input_tokens(body: PromptFields, request: Request) -> Response:
    """How many tokens the prompt of such a request has."""
    gateway: Gateway = request.app.state.gateway
    asked = await understood(body, request, _kept(request).store, None)
    with spelled(form_names(asked.prompt)):
        count = await gateway.count_tokens(asked.prompt, request.receive)
    counted = {"object": "response.input_tokens", "input_tokens": count}
    return JSONResponse(counted, headers=warning_header(asked.warnings))


@router.post("/compact", response_model=None, status_code=400)
async def compact() -> Response:
    """Not served."""
    raise Unsupported(
        "compacting is not supported by this server", hint="begin a new conversation instead"
    )


@router.get("/{response_id}", response_model=None, responses=answers(ResponseObject))
async def get_response(response_id: str, request: Request, stream: bool = False) -> Response:
    """A stored response, also while it is made in the background."""
    if stream:
        raise Unsupported("stream of a stored response is not supported", param="stream")
    kept = _kept(request)
    entry = entry_of(kept.store, response_id)
    running = kept.background.present(response_id)
    return JSONResponse(running) if running else _stored(entry)


@router.delete("/{response_id}", response_model=None, responses=answers(Deleted))
async def delete_response(response_id: str, request: Request) -> Response:
    """Forget a response. Those that go on from it keep what was said."""
    kept = _kept(request)
    entry_of(kept.store, response_id)
    kept.background.forget(response_id)
    kept.store.delete(response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.post("/{response_id}/cancel", response_model=None, responses=answers(ResponseObject))
async def cancel_response(response_id: str, request: Request) -> Response:
    """Cancel a response that is made in the background; what it had said stays."""
    kept = _kept(request)
    if not entry_of(kept.store, response_id).background:
        raise Unsupported(
            f"response {response_id!r} is no background response; only those can be cancelled",
            param="response_id",
            hint="close the connection to cancel any other request",
        )
    await kept.background.cancel(response_id)
    return _stored(entry_of(kept.store, response_id))


@router.get("/{response_id}/input_items", response_model=None, responses=answers(ItemList))
async def list_input_items(
    response_id: str,
    request: Request,
    after: str | None = None,
    limit: int = 20,
    order: str = "desc",
) -> Response:
    """What a response was made from: the items of the turns before it, then its own input."""
    entry = entry_of(_kept(request).store, response_id)
    return JSONResponse(page(entry.turn.used(), after=after, limit=limit, order=order))


def _kept(request: Request) -> Kept:
    state = request.app.state
    if not hasattr(state, "responses"):
        bounds = state.gateway.settings
        state.responses = Kept(ResponseStore(bounds.max_responses, bounds.max_response_bytes))
    kept: Kept = state.responses
    return kept


def _stored(entry: Entry) -> Response:
    return Response(entry.data, media_type="application/json")


def _in_background(body: ResponsesRequest) -> bool:
    if not body.background:
        return False
    if body.stream:
        raise Unsupported("background is not supported together with stream", param="background")
    if not body.stored:
        raise InvalidRequest("background needs store to be true", param="store")
    return True


def _reply(error: RequestError) -> ErrorReply:
    reply = error_reply(error)
    if isinstance(error, ResponseNotFound):
        return replace(reply, status=404)
    if isinstance(error, UnknownParameter):
        return reply
    return replace(
        reply, message=renamed(reply.message), param=reply.param and renamed(reply.param)
    )
