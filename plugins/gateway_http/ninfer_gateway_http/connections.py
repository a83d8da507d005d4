"""One connection: how long and how much a peer may keep the server waiting."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from ninfer_gateway_http.errors import ErrorReply
from ninfer_gateway_http.middleware import MAX_HEAD_BYTES

_CAN_ANSWER: Final = frozenset({h11.IDLE, h11.SEND_RESPONSE})
_MESSAGES: Final = {
    400: "this is no valid HTTP request",
    408: "the request did not arrive in time",
    431: f"the request's headers are larger than {MAX_HEAD_BYTES} bytes",
}


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: for a request's head to arrive, and for a peer to read what it was sent."""

    head: float
    stall: float


class Connection(H11Protocol):
    """uvicorn's connection, which waits for ever, with an end to every wait.

    A head that does not arrive in time is answered with 408. A peer that reads nothing for
    ``patience.stall`` seconds, while its reply fills the buffers, is cut off; its request is
    cancelled as if it had left.
    """

    def __init__(self, *args: Any, patience: Patience, **options: Any) -> None:
        super().__init__(*args, **options)
        self._patience = patience
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        self._reading_again()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # After an early answer, what is left of a refused body has to end some time, too.
        if self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE:
            self._await_head()
        else:
            self._head_arrived()

    def eof_received(self) -> None:
        """The peer sends no more: a request that is not whole by now never will be."""
        begun = bool(self.conn.trailing_data[0])
        if self.conn.their_state is h11.SEND_BODY or (self.conn.their_state is h11.IDLE and begun):
            self._refuse(400)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._await_reading()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._await_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._reading_again()

    def send_400_response(self, msg: str) -> None:
        """Called where h11 refused the peer's bytes."""
        error = sys.exc_info()[1]
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self._refuse(hint if hint in _MESSAGES else 400)

    def _refuse(self, status: int) -> None:
        """Answer with an error and close; where an answer has begun already, only close."""
        if not self.transport.is_closing():
            if self.conn.our_state in _CAN_ANSWER:
                self._answer(ErrorReply(status=status, message=_MESSAGES[status]))
            self.transport.close()
        self._head_arrived()
        self._await_reading()

    def _answer(self, reply: ErrorReply) -> None:
        body = json.dumps(reply.body()).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        head = h11.Response(
            status_code=reply.status, headers=headers, reason=STATUS_PHRASES[reply.status]
        )
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def _await_head(self) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self._patience.head, self._refuse, 408)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _await_reading(self) -> None:
        """A peer that reads nothing would keep even a closed connection for ever."""
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self._patience.stall, self.transport.abort)

    def _reading_again(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
