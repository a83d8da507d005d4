"""What all routes share: one engine, its public name, and the requests that are open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.types import Receive

from ninfer_core.contract.engine import EngineLike
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_gateway_http.bridge import ClientGone, Exchange
from ninfer_gateway_http.errors import ModelNotFound
from ninfer_gateway_http.settings import ServerSettings


class Gateway:
    """Serves ``engine``; the caller keeps it open and closes it."""

    def __init__(self, engine: EngineLike, settings: ServerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.model = engine.load_summary()
        self.name = settings.model_id or self.model.name
        self._open: set[Exchange] = set()

    @property
    def open_requests(self) -> int:
        """Admitted or queued requests whose reply has not been sent whole."""
        return len(self._open)

    def check_model(self, asked: str | None) -> None:
        """Raises ModelNotFound unless ``asked`` is this model, or nothing."""
        if asked not in (None, self.name):
            raise ModelNotFound(
                f"the model {asked!r} is not served here",
                param="model",
                hint=f"ask for {self.name!r}",
            )

    @contextlib.asynccontextmanager
    async def exchange(
        self, prompt: PromptInput, options: GenerationOptions, receive: Receive
    ) -> AsyncIterator[Exchange]:
        """Submit and follow one request; it is cancelled when the peer leaves or the block ends.

        ``receive`` is the connection after its body was read. Raises what submitting raises.
        """
        handle = await asyncio.to_thread(self.engine.submit, prompt, options)
        exchange = Exchange(handle)
        self._open.add(exchange)
        watch = asyncio.create_task(_watch(receive, exchange))
        try:
            yield exchange
        finally:
            watch.cancel()
            self._open.discard(exchange)
            exchange.close()

    def end_all(self, error: Exception) -> None:
        """End every open request with ``error``."""
        for exchange in tuple(self._open):
            exchange.end(error)


async def _watch(receive: Receive, exchange: Exchange) -> None:
    """End ``exchange`` as soon as the peer has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.end(ClientGone())
