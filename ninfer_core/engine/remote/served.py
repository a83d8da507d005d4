"""The engine inside its own process: an in-process engine whose responses leave it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.requests import GenerationOptions
from ninfer_core.engine.facade import Engine
from ninfer_core.engine.handle import RequestHandle
from ninfer_core.engine.lifecycle import Lifecycle
from ninfer_core.engine.opened import InstanceFactory
from ninfer_core.engine.remote.outbox import Outbox, OutgoingLifecycle, OutgoingResponse


class ServedEngine(Engine):
    """``stage`` hears what the engine does while it starts."""

    _loads_grammars = True

    def __init__(
        self,
        factory: InstanceFactory,
        options: EngineOptions,
        outbox: Outbox,
        stage: Callable[[str], None],
    ) -> None:
        self._outbox = outbox
        self._say = stage
        super().__init__(factory, options)

    def submit_as(
        self, number: int, prompt: PreparedPrompt, options: GenerationOptions, spent: float
    ) -> RequestHandle:
        """As ``submit``, for a caller who asked ``spent`` seconds ago and knows the request by
        ``number``. The handle serves to cancel and to let go; its events are elsewhere."""
        ingress = self._require_ingress()
        response = partial(OutgoingResponse, number, self._outbox)
        return ingress.submit(prompt, options, spent=spent, response=response)

    def _new_lifecycle(self) -> Lifecycle:
        return OutgoingLifecycle(self._outbox)

    def _stage(self, text: str) -> None:
        self._say(text)
