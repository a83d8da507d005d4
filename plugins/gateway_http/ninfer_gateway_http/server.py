"""Running the application: listening socket, signals, and an end that lets requests finish."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn
from fastapi import FastAPI

from ninfer_core.contract.errors import Unavailable
from ninfer_core.errors import NinferError
from ninfer_gateway_http.gateway import Gateway

_GOODBYE: Final = 5
_SLICE: Final = 0.2
_TICK: Final = 0.02


class CannotListen(NinferError):
    """The address cannot be listened on."""


def listen(host: str, port: int) -> socket.socket:
    """A bound socket that does not accept yet; ``port`` 0 takes a free one. Raises CannotListen."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        with contextlib.ExitStack() as undo:
            undo.callback(sock.close)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            undo.pop_all()
    except OSError as error:
        raise CannotListen(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="choose another --host or --port",
        ) from None
    return sock


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Stops in three steps after the first signal: refuse new requests with 503, let the running
    ones finish for ``settings.drain`` seconds, end the rest with an error. A second signal skips
    the waiting."""

    def __init__(self, app: FastAPI, on_ready: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GOODBYE,
            )
        )
        self._gateway: Gateway = app.state.gateway
        self._on_ready = on_ready

    def serve_on(self, sock: socket.socket) -> None:
        """Serve until a signal comes or ``should_exit`` is set."""
        asyncio.run(self.serve(sockets=[sock]))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal. It is not raised again after the end: stopping when asked is success."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._drain()
        self._gateway.end_all(Unavailable("the server is stopping"))
        await super().shutdown(sockets)

    async def _drain(self) -> None:
        deadline = time.monotonic() + self._gateway.settings.drain
        drained = False
        while not self.force_exit:
            left = max(0.0, min(_SLICE, deadline - time.monotonic()))
            drained = drained or await asyncio.to_thread(self._gateway.engine.drain, left)
            if (drained and not self._gateway.open_requests) or left == 0.0:
                return
            await asyncio.sleep(_TICK)
