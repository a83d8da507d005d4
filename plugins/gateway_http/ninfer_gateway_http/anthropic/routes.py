"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.events import Delta, GenerationStart
from ninfer_gateway_http.anthropic.documents import MessageReply, TokenCount, replies_of
from ninfer_gateway_http.anthropic.errors import in_dialect, own_names, spelled
from ninfer_gateway_http.anthropic.replies import MessageWriter
from ninfer_gateway_http.anthropic.schema import CountRequest, MessagesRequest
from ninfer_gateway_http.anthropic.stream import PING, MessageEvents, event
from ninfer_gateway_http.anthropic.translate import Asked, to_options, understand
from ninfer_gateway_http.bodies import BodyRoute, apart
from ninfer_gateway_http.bridge import Exchange
from ninfer_gateway_http.errors import ErrorReply
from ninfer_gateway_http.errors import spelled as form_spelled
from ninfer_gateway_http.extras import refuse_clamped
from ninfer_gateway_http.gateway import Gateway
from ninfer_gateway_http.sse import EventStream, batched
from ninfer_gateway_http.streams import (
    finished,
    guarded,
    note_result,
    started,
    warning_header,
    with_silences,
)
from ninfer_gateway_http.structured import form_names

router = APIRouter(route_class=BodyRoute)


@router.post("/v1/messages", response_model=None, responses=replies_of(MessageReply, streams=True))
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answer a conversation, as a stream of events when ``stream`` is true."""
    gateway: Gateway = request.app.state.gateway
    with own_names():
        asked = await _understood(body, request)
        options = to_options(body, asked, gateway.model)
        async with AsyncExitStack() as owner:
            # Status and headers wait for admission, so that a refusal still has its own status.
            with form_spelled(form_names(asked.prompt)):
                exchange = await owner.enter_async_context(
                    gateway.exchange(asked.prompt, options, request.receive)
                )
                start = await started(exchange)
            notes = tuple(map(spelled, start.notes))
            if gateway.settings.strict:
                refuse_clamped(notes)
            headers = warning_header((*asked.warnings, *notes))
            writer = MessageWriter(body.model or gateway.name, asked.thinking.shown)
            answer = _Answer(writer, gateway, exchange, request)
            if not body.stream:
                return JSONResponse(await answer.whole(), headers=headers)
            return EventStream(answer.events(start), owner.pop_all(), headers)


@router.post("/v1/messages/count_tokens", response_model=None, responses=replies_of(TokenCount))
async def count_tokens(body: CountRequest, request: Request) -> JSONResponse:
    """The number of tokens of the prompt that the same request to ``/v1/messages`` would read."""
    gateway: Gateway = request.app.state.gateway
    with own_names():
        asked = await _understood(body, request)
        with form_spelled(form_names(asked.prompt)):
            count = await gateway.count_tokens(asked.prompt, request.receive)
    return JSONResponse({"input_tokens": count}, headers=warning_header(asked.warnings))


async def _understood(body: CountRequest, request: Request) -> Asked:
    gateway: Gateway = request.app.state.gateway
    work = partial(understand, body, gateway.model, strict=gateway.settings.strict)
    return await apart(request, work)


@dataclass(frozen=True, slots=True)
class _Answer:
    """One admitted request and how it is written."""

    writer: MessageWriter
    gateway: Gateway
    exchange: Exchange
    request: Request

    async def whole(self) -> dict[str, Any]:
        async for item in self.exchange:
            if not isinstance(item, Delta):
                return self.writer.message(note_result(self._facts, finished(item)))
        raise EngineFailure("a request ended without a result")

    def events(self, start: GenerationStart) -> AsyncIterator[bytes]:
        """The body of a stream."""
        keep_alive = self.gateway.settings.keep_alive
        chunks = batched(self._chunks(start), lambda: self.exchange.pending, PING, keep_alive)
        return guarded(chunks, self._facts, self._failure)

    async def _chunks(self, start: GenerationStart) -> AsyncIterator[bytes]:
        written = MessageEvents(self.writer)
        yield _bytes(written.opening(start))
        async for item in with_silences(self.exchange, self.gateway.settings.keep_alive):
            if item is None:
                yield PING
            elif not isinstance(item, Delta):
                yield _bytes(written.closing(note_result(self._facts, finished(item))))
            else:
                yield written.text(item) or _bytes(written.delta(item))

    def _failure(self, reply: ErrorReply) -> Iterable[bytes]:
        return [event(in_dialect(reply, self.request.scope).body())]

    @property
    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = self.request.scope["state"]
        return facts


def _bytes(events: Iterator[dict[str, Any]]) -> bytes:
    return b"".join(map(event, events))
