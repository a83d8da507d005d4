"""What every route that generates does with an exchange, whatever its dialect."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

from ninfer_core.contract.errors import Cancelled, EngineFailure
from ninfer_core.contract.events import (
    Failed,
    Finished,
    GenerationEvent,
    GenerationResult,
    GenerationStart,
)
from ninfer_gateway_http.bridge import ClientGone, Exchange
from ninfer_gateway_http.errors import ErrorReply, error_reply

Facts = dict[str, Any]
"""What the log line of a request shows; a route finds it in ``request.scope["state"]``."""

_log: Final = logging.getLogger("ninfer.http")


async def started(exchange: Exchange) -> GenerationStart:
    """Wait for admission, so that a refusal still has a status of its own.

    Raises what the request ended with before it started.
    """
    event = await exchange.next_event()
    if event is None:
        raise EngineFailure("a request ended without a result")
    return start_of(event)


def start_of(event: GenerationEvent) -> GenerationStart:
    """The start that ``event`` must be. Raises what the request ended with instead."""
    if isinstance(event, GenerationStart):
        return event
    finished(event)
    raise Cancelled("the request was cancelled before it started")


def finished(event: GenerationEvent) -> GenerationResult:
    """The result that ``event`` ends a request with. Raises the request's error."""
    if isinstance(event, Finished):
        return event.result
    if isinstance(event, Failed):
        raise event.error
    raise EngineFailure(f"{type(event).__name__} came out of order")


async def with_silences(
    exchange: Exchange, seconds: float
) -> AsyncIterator[GenerationEvent | None]:
    """Events, and None whenever nothing came for ``seconds``."""
    while True:
        try:
            event = await exchange.next_event(seconds)
        except TimeoutError:
            yield None
            continue
        if event is None:
            return
        yield event


async def guarded(
    chunks: AsyncIterator[bytes],
    facts: Facts,
    failure: Callable[[ErrorReply], Iterable[bytes]],
) -> AsyncIterator[bytes]:
    """The body of a stream. Its status is sent by now, so an error becomes what ``failure`` makes
    of it. A peer that left gets nothing more."""
    try:
        async for chunk in chunks:
            yield chunk
    except ClientGone:
        facts["finish"] = "client_gone"
    except Exception as error:
        reply = error_reply(error)
        facts["finish"] = reply.code
        if reply.status == 500:
            _log.exception("a stream failed")
        for chunk in failure(reply):
            yield chunk


def note_result(facts: Facts, result: GenerationResult) -> GenerationResult:
    """Add ``result`` to the log line; the counts of several results of a request add up."""
    facts["prompt"] = facts.get("prompt", 0) + result.usage.prompt_tokens
    facts["cached"] = facts.get("cached", 0) + result.usage.cached_tokens
    facts["completion"] = facts.get("completion", 0) + result.usage.completion_tokens
    facts["finish"] = result.finish_reason.value
    for name in ("queue", "prefill", "decode"):
        seconds = facts.get(f"{name}_ms", 0.0) + 1000 * getattr(result.timings, name)
        facts[f"{name}_ms"] = round(seconds, 3)
    return result


def warning_header(warnings: Iterable[str]) -> dict[str, str]:
    """``x-ninfer-warning`` with all of ``warnings``; no header without any."""
    text = "; ".join(warnings).encode("ascii", "backslashreplace").decode()
    return {"x-ninfer-warning": " ".join(text.split())[:1000].rstrip()} if text else {}
