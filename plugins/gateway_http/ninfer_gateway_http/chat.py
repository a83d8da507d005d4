"""``POST /v1/chat/completions``."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from ninfer_core.contract.errors import Cancelled, EngineFailure
from ninfer_core.contract.events import (
    Delta,
    Failed,
    Finished,
    GenerationEvent,
    GenerationResult,
    GenerationStart,
)
from ninfer_gateway_http import sse
from ninfer_gateway_http.bridge import ClientGone, Exchange
from ninfer_gateway_http.errors import error_reply, on_the_wire
from ninfer_gateway_http.gateway import Gateway
from ninfer_gateway_http.replies import JsonDict, ReplyWriter
from ninfer_gateway_http.schema import ChatRequest, check_extras
from ninfer_gateway_http.translate import to_options, to_prompt

router = APIRouter()
_log: Final = logging.getLogger("ninfer.http")


@router.post("/v1/chat/completions", response_model=None)
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation, as a stream of events when ``stream`` is true."""
    gateway: Gateway = request.app.state.gateway
    gateway.check_model(body.model)
    warnings = check_extras(body)
    options = to_options(body, gateway.model, gateway.settings.default_max_tokens)
    async with AsyncExitStack() as owner:
        # Status and headers wait for admission, so that a refusal still has its own status.
        exchange = await owner.enter_async_context(
            gateway.exchange(to_prompt(body), options, request.receive)
        )
        start = await _started(exchange)
        headers = _warning_header((*warnings, *map(on_the_wire, start.notes)))
        answer = _Answer(body, gateway, exchange, request.scope["state"])
        if not body.stream:
            return JSONResponse(await answer.whole(), headers=headers)
        return sse.EventStream(answer.events(), owner.pop_all(), headers)


@dataclass(frozen=True, slots=True)
class _Answer:
    """One admitted request and how it is written; ``facts`` is what the request log shows."""

    body: ChatRequest
    gateway: Gateway
    exchange: Exchange
    facts: JsonDict

    async def whole(self) -> JsonDict:
        async for event in self.exchange:
            if not isinstance(event, Delta):
                result = self._result(event)
                return self._writer().completion(result, logprobs=bool(self.body.logprobs))
        raise EngineFailure("a request ended without a result")

    async def events(self) -> AsyncIterator[bytes]:
        """The body of a stream. The status is sent by now: an error is an event, too."""
        try:
            async for chunk in self._chunks():
                yield sse.KEEP_ALIVE if chunk is None else sse.event(chunk)
        except ClientGone:
            self.facts["finish"] = "client_gone"
            return
        except Exception as error:
            reply = error_reply(error)
            self.facts["finish"] = reply.code
            if reply.status == 500:
                _log.exception("a stream failed")
            yield sse.event(reply.body())
        yield sse.DONE

    async def _chunks(self) -> AsyncIterator[JsonDict | None]:
        writer, wants_logprobs = self._writer(), bool(self.body.logprobs)
        yield writer.opening()
        async for event in self._with_silences():
            if event is None:
                yield None
            elif isinstance(event, Delta):
                if chunk := writer.delta(event, logprobs=wants_logprobs):
                    yield chunk
            else:
                result = self._result(event)
                yield writer.closing(result)
                if self.body.stream_options and self.body.stream_options.include_usage:
                    yield writer.usage_chunk(result)

    async def _with_silences(self) -> AsyncIterator[GenerationEvent | None]:
        """Events, and None whenever nothing came for a while."""
        while True:
            try:
                event = await self.exchange.next_event(self.gateway.settings.keep_alive)
            except TimeoutError:
                yield None
                continue
            if event is None:
                return
            yield event

    def _writer(self) -> ReplyWriter:
        return ReplyWriter(self.gateway.name, self.gateway.engine.token_bytes)

    def _result(self, event: GenerationEvent) -> GenerationResult:
        result = _finished(event)
        self.facts.update(
            prompt=result.usage.prompt_tokens,
            completion=result.usage.completion_tokens,
            finish=result.finish_reason.value,
        )
        return result


async def _started(exchange: Exchange) -> GenerationStart:
    event = await exchange.next_event()
    if isinstance(event, GenerationStart):
        return event
    if event is None:
        raise EngineFailure("a request ended without a result")
    _finished(event)
    raise Cancelled("the request was cancelled before it started")


def _finished(event: GenerationEvent) -> GenerationResult:
    if isinstance(event, Finished):
        return event.result
    if isinstance(event, Failed):
        raise event.error
    raise EngineFailure(f"{type(event).__name__} came out of order")


def _warning_header(warnings: tuple[str, ...]) -> dict[str, str]:
    if not warnings:
        return {}
    text = "; ".join(warnings).encode("ascii", "backslashreplace").decode()
    return {"x-ninfer-warning": " ".join(text.split())[:1000]}
