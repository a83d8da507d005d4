"""What all routes share: one engine, its public name, and the requests that are open."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TypeVar

from starlette.types import Receive

from ninfer_core.contract.engine import EngineLike, GenerationHandle
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_gateway_http.allowance import Allowance
from ninfer_gateway_http.bridge import Exchange
from ninfer_gateway_http.choices import Choices, ManyChoices, OneChoice, Part
from ninfer_gateway_http.errors import ModelNotFound
from ninfer_gateway_http.metrics_requests import RequestMetrics
from ninfer_gateway_http.presence import for_peer, watched, when_gone
from ninfer_gateway_http.settings import ServerSettings
from ninfer_gateway_http.threads import at_length, at_once, forms_line, is_long, may_compile

T = TypeVar("T")


class Gateway:
    """Serves ``engine``; the caller keeps it open and closes it."""

    def __init__(self, engine: EngineLike, settings: ServerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.model = engine.load_summary()
        self.name = settings.model_id or self.model.name
        self.metrics = RequestMetrics()
        self._forms = forms_line()
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

    async def prepare(self, prompt: PromptInput, receive: Receive) -> PreparedPrompt:
        """Render and tokenise off the loop, unless the peer leaves or waits too long first.

        ``receive`` is the connection after its body was read. Raises what preparing raises.
        """
        return await self._read(prompt, partial(self.engine.prepare, prompt), receive)

    async def count_tokens(self, prompt: PromptInput, receive: Receive) -> int:
        """As :meth:`prepare`, for their number."""
        return await self._read(prompt, partial(self.engine.count_tokens, prompt), receive)

    @contextlib.asynccontextmanager
    async def exchange(
        self,
        prompt: PromptInput | PreparedPrompt,
        options: GenerationOptions,
        receive: Receive,
    ) -> AsyncIterator[Exchange]:
        """Submit and follow one request; it is cancelled when the peer leaves or the block ends.

        ``receive`` is the connection after its body was read. Raises what submitting raises.
        """
        with watched(receive) as gone:
            submitting = self._submit(Part(prompt, options))
            handle = await for_peer(gone, submitting, _close)
            async with self._followed(handle) as exchange:
                when_gone(gone, exchange.end)
                yield exchange

    @contextlib.asynccontextmanager
    async def choices(self, parts: Sequence[Part], receive: Receive) -> AsyncIterator[Choices]:
        """As :meth:`exchange` for one or several parts of one request.

        Only a single part raises here what submitting raises; several do when they are read.
        """
        if len(parts) == 1:
            async with self.exchange(parts[0].prompt, parts[0].options, receive) as exchange:
                yield OneChoice(exchange)
            return
        many = ManyChoices(parts, self.model.max_concurrency, self._opened)
        try:
            with watched(receive) as gone:
                when_gone(gone, many.end)
                yield many
        finally:
            await many.close()

    @contextlib.asynccontextmanager
    async def _opened(self, part: Part) -> AsyncIterator[Exchange]:
        async with self._followed(await self._submit(part)) as exchange:
            yield exchange

    @contextlib.asynccontextmanager
    async def _followed(self, handle: GenerationHandle) -> AsyncIterator[Exchange]:
        exchange = Exchange(self.metrics.watched(handle))
        self._open.add(exchange)
        try:
            yield exchange
        finally:
            self._open.discard(exchange)
            exchange.close()

    async def _submit(self, part: Part) -> GenerationHandle:
        """A handle that comes too late for a cancelled task is closed."""
        allowance = Allowance.of(self.settings, part.options)

        def submit() -> GenerationHandle:
            return self.engine.submit(part.prompt, allowance.rest(part.options))

        async with allowance.waiting():
            return await self._run_for(part.prompt, submit, _close)

    async def _read(self, prompt: PromptInput, work: Callable[[], T], receive: Receive) -> T:
        with watched(receive) as gone:
            async with Allowance.of(self.settings).waiting():
                return await for_peer(gone, self._run_for(prompt, work))

    async def _run_for(
        self,
        prompt: PromptInput | PreparedPrompt,
        work: Callable[[], T],
        late: Callable[[T], None] | None = None,
    ) -> T:
        """Plain and short prompts, which are soon submitted, wait for no others."""
        if may_compile(prompt):
            return await self._forms.run(work, late)
        if is_long(prompt):
            return await at_length(work, late)
        return await at_once(work, late)

    def end_all(self, error: Exception) -> None:
        """End every open request with ``error``."""
        for exchange in tuple(self._open):
            exchange.end(error)


def _close(handle: GenerationHandle) -> None:
    handle.close()
