"""Work for a peer that may leave meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from starlette.types import Receive

from ninfer_gateway_http.bridge import ClientGone

T = TypeVar("T")


@contextlib.contextmanager
def watched(receive: Receive) -> Iterator[asyncio.Future[None]]:
    """A future that is done as soon as the peer has gone, and is cancelled at the end of the block.

    ``receive`` is the connection after its body was read.
    """
    gone = asyncio.ensure_future(_departure(receive))
    try:
        yield gone
    finally:
        gone.cancel()


def when_gone(gone: asyncio.Future[None], end: Callable[[Exception], None]) -> None:
    """Call ``end`` with ClientGone once the peer has gone."""

    def tell(done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is None:
            end(ClientGone())

    gone.add_done_callback(tell)


async def for_peer(
    gone: asyncio.Future[None],
    work: Coroutine[Any, Any, T],
    late: Callable[[T], None] | None = None,
) -> T:
    """What ``work`` returns. When the peer goes first, ``work`` is cancelled and ClientGone raised.

    A result that nobody waits for any more is given to ``late``.
    """
    task = asyncio.ensure_future(work)
    either: set[asyncio.Future[Any]] = {task, gone}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        _drop(task, late)
        raise
    if task.done():
        return task.result()
    _drop(task, late)
    gone.result()
    raise ClientGone


def _drop(task: asyncio.Future[T], late: Callable[[T], None] | None) -> None:
    def take(done: asyncio.Future[T]) -> None:
        if not done.cancelled() and done.exception() is None and late is not None:
            late(done.result())

    task.cancel()
    task.add_done_callback(take)


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
