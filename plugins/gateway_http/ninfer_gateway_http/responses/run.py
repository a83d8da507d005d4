"""One response while it is made: as a stream of events, as a whole, or in the background."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final

from ninfer_core.contract.errors import Cancelled, EngineFailure
from ninfer_core.contract.events import Delta, FinishReason, GenerationEvent, GenerationResult
from ninfer_gateway_http import sse
from ninfer_gateway_http.bridge import Exchange
from ninfer_gateway_http.errors import ErrorReply
from ninfer_gateway_http.responses.output import Event, Output
from ninfer_gateway_http.responses.reply import JsonDict, ResponseWriter, status_of
from ninfer_gateway_http.responses.store import ResponseStore
from ninfer_gateway_http.responses.translate import renamed
from ninfer_gateway_http.responses.understand import Asked
from ninfer_gateway_http.streams import Facts, finished, guarded, note_result, with_silences

_NUMBER: Final = uuid.uuid4().int
"""Stands for the number in the event that a stencil is made of."""


class Run:
    """Follows ``exchange`` to its end. With ``store`` the response is stored before its end is
    told, so that a client may refer to it at once."""

    def __init__(
        self,
        writer: ResponseWriter,
        output: Output,
        exchange: Exchange,
        asked: Asked,
        store: ResponseStore | None,
        facts: Facts,
    ) -> None:
        self.writer = writer
        self.exchange = exchange
        self._output = output
        self._asked = asked
        self._store = store
        self._facts = facts
        self._numbers = itertools.count()
        self._stencils: dict[tuple[str, str], sse.Stencil] = {}

    def present(self, status: str = "in_progress") -> JsonDict:
        """The response as far as it came."""
        grows = status == "in_progress"
        output = self._output.items(status if grows else "incomplete")
        return self.writer.response(status, output)

    def keep(self, response: JsonDict) -> JsonDict:
        """Store ``response`` unless it is not to be stored."""
        if self._store is not None:
            self._store.put(response, self._asked.turn(self.writer.id, response["output"]))
        return response

    def forget(self) -> None:
        """From now on nothing is stored."""
        self._store = None

    async def whole(self) -> JsonDict:
        """The response at its end. Raises what the request failed with."""
        async for event in self.exchange:
            if isinstance(event, Delta):
                for _ in self._output.add(event):
                    pass
            else:
                result = self._result(event)
                for _ in self._ending(result):
                    pass
                return self._kept_end(result)
        raise EngineFailure("a request ended without a result")

    def events(self, keep_alive: float) -> AsyncIterator[bytes]:
        """The body of a stream. It ends with exactly one of ``response.completed``,
        ``response.incomplete`` and ``response.failed``."""
        body = self._body(keep_alive)
        chunks = sse.batched(body, lambda: self.exchange.pending, seconds=keep_alive)
        return guarded(chunks, self._facts, self._failure)

    def failed(self, reply: ErrorReply) -> JsonDict:
        """The response that ``reply`` ended, stored."""
        return self.keep(
            self.writer.response("failed", self._output.items("incomplete"), error=reply)
        )

    async def _body(self, keep_alive: float) -> AsyncIterator[bytes]:
        """Bytes for each event of the engine: what it leads to is sent in one go, if anything."""
        kinds = ("response.created", "response.in_progress")
        yield self._sent({"type": kind, "response": self.present()} for kind in kinds)
        async for event in with_silences(self.exchange, keep_alive):
            if event is None:
                yield sse.KEEP_ALIVE
            elif isinstance(event, Delta):
                yield self._sent(self._output.add(event))
            else:
                yield self._sent(self._last(self._result(event)))

    def _last(self, result: GenerationResult) -> Iterator[Event]:
        yield from self._ending(result)
        response = self._kept_end(result)
        yield {"type": f"response.{response['status']}", "response": response}

    def _failure(self, reply: ErrorReply) -> Iterator[bytes]:
        fields = {"code": reply.code, "message": renamed(reply.message), "param": reply.param}
        failed = {"type": "response.failed", "response": self.failed(reply)}
        yield self._sent([{"type": "error", **fields}, failed])

    def _result(self, event: GenerationEvent) -> GenerationResult:
        result = note_result(self._facts, finished(event))
        if result.finish_reason is FinishReason.CANCELLED:
            raise Cancelled("the request was cancelled")
        return result

    def _ending(self, result: GenerationResult) -> Iterator[Event]:
        return self._output.end(status_of(result), [call.id for call in result.tool_calls])

    def _kept_end(self, result: GenerationResult) -> JsonDict:
        output = self._output.items()
        return self.keep(self.writer.response(status_of(result), output, result=result))

    def _sent(self, events: Iterable[Event]) -> bytes:
        """``events`` with their numbers, as they are sent."""
        return b"".join([self._framed(event) for event in events])

    def _framed(self, event: Event) -> bytes:
        number = next(self._numbers)
        if "delta" not in event or event.get("logprobs"):
            return _named({**event, "sequence_number": number})
        key = event["type"], event["item_id"]
        stencil = self._stencils.get(key)
        if stencil is None:
            sample = {**event, "delta": sse.Stencil.HOLE, "sequence_number": _NUMBER}
            stencil = self._stencils[key] = sse.Stencil(_named(sample))
        return stencil.filled(event["delta"]).replace(b"%d" % _NUMBER, b"%d" % number)


def _named(event: Event) -> bytes:
    return f"event: {event['type']}\n".encode() + sse.event(event)
