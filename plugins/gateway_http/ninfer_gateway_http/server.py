"""Running the application: listening socket, signals, and an end that lets requests finish."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from ninfer_core.contract.errors import Unavailable
from ninfer_gateway_http.connections import Connection, Patience
from ninfer_gateway_http.gateway import Gateway
from ninfer_gateway_http.middleware import MAX_HEAD_BYTES
from ninfer_gateway_http.sockets import CannotListen, Tls, listen, url_of

__all__ = ["CannotListen", "Server", "listen", "url_of"]

_GOODBYE: Final = 5
_SLICE: Final = 0.2
_TICK: Final = 0.02
_THREADS: Final = 64
"""Requests that are prepared and submitted at a time; what takes longer has threads of its own."""


class Server(uvicorn.Server):
    """Stops in three steps after the first signal: refuse new requests with 503, let the running
    ones finish for ``settings.drain`` seconds, end the rest with an error. A second signal skips
    the waiting."""

    def __init__(
        self,
        app: FastAPI,
        on_ready: Callable[[], None] = lambda: None,
        tls: Tls | None = None,
    ) -> None:
        self._gateway: Gateway = app.state.gateway
        settings = self._gateway.settings
        patience = Patience(settings.receive_timeout, settings.stall_timeout)
        protocol: Any = partial(Connection, patience=patience)
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                http=protocol,
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                timeout_graceful_shutdown=_GOODBYE,
                ssl_certfile=tls.certificate if tls else None,
                ssl_keyfile=tls.key if tls else None,
            )
        )
        self._on_ready = on_ready

    def serve_on(self, sock: socket.socket) -> None:
        """Serve until a signal comes or ``should_exit`` is set."""
        asyncio.run(self.serve(sockets=[sock]))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal. It is not raised again after the end: stopping when asked is success."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ninfer-http")
        asyncio.get_running_loop().set_default_executor(threads)
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
