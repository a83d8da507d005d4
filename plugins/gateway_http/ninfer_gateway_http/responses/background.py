"""Responses that are made while nobody waits: they can be looked at, cancelled and deleted."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Final

from starlette.types import Message

from ninfer_core.contract.errors import Cancelled
from ninfer_gateway_http.errors import error_reply
from ninfer_gateway_http.responses.reply import JsonDict
from ninfer_gateway_http.responses.run import Run
from ninfer_gateway_http.streams import started

_log: Final = logging.getLogger("ninfer.http")


async def nobody_leaves() -> Message:
    """In place of a connection whose peer may leave."""
    await asyncio.Event().wait()
    raise AssertionError


class Background:
    """The runs in progress, by the id of their response."""

    def __init__(self) -> None:
        self._runs: dict[str, tuple[Run, asyncio.Task[None]]] = {}

    def start(self, run: Run, owner: AsyncExitStack) -> JsonDict:
        """Follow ``run`` in a task that closes ``owner``; gives the response as it is queued."""
        queued = run.keep(run.writer.response("queued"))
        name = run.writer.id
        task = asyncio.create_task(_follow(run, owner), name=name)
        self._runs[name] = run, task
        task.add_done_callback(lambda _: self._runs.pop(name, None))
        return queued

    def present(self, name: str) -> JsonDict | None:
        """The state of a running response; None when it is not running."""
        found = self._runs.get(name)
        return found and found[0].present()

    async def cancel(self, name: str) -> None:
        """Cancel a running response and wait until it has ended."""
        found = self._runs.get(name)
        if found is not None:
            run, task = found
            run.exchange.end(_CancelledByClient("the response was cancelled"))
            await asyncio.wait({task})

    def forget(self, name: str) -> None:
        """Cancel a running response that is to leave nothing behind."""
        found = self._runs.get(name)
        if found is not None:
            found[0].forget()
            found[0].exchange.end(_CancelledByClient("the response was deleted"))


class _CancelledByClient(Cancelled):
    """Asked for, unlike an end of the server's own."""


async def _follow(run: Run, owner: AsyncExitStack) -> None:
    async with owner:
        try:
            await started(run.exchange)
            await run.whole()
        except _CancelledByClient:
            run.keep(run.present("cancelled"))
        except Exception as error:
            reply = error_reply(error)
            if reply.status == 500:
                _log.exception("a background response failed")
            run.failed(reply)
