"""The way out: everything physical first, then every response."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from ninfer_core.contract.errors import EngineFailure, Unavailable
from ninfer_core.contract.events import Failed
from ninfer_core.contract.program import Program
from ninfer_core.engine.contexts import ContextDriver
from ninfer_core.engine.lifecycle import Abandon, Ask, Message, Submit
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.resource_manager import ResourceManager
from ninfer_core.engine.states import RUNNABLE, RequestState, Transitions
from ninfer_core.engine.units import UnitRunner

_ADVANCES = 2000
_ADVANCE_PAUSE = 0.001


class Cleanup:
    """Ends an engine that failed or is closed. Each step runs even if the one before it raised;
    ``troubles`` keeps what was raised on the way."""

    def __init__(
        self,
        program: Program,
        resources: ResourceManager,
        contexts: ContextDriver,
        units: UnitRunner,
        transitions: Transitions,
    ) -> None:
        self._program = program
        self._resources = resources
        self._contexts = contexts
        self._units = units
        self._transitions = transitions
        self.troubles: list[Exception] = []

    def release_all(self, records: Iterable[RequestRecord]) -> None:
        """End open transactions, then what residents and paused requests hold, then the cache."""
        self._attempt(self._end_context)
        self._units.abandon(self._attempt)
        for record in records:
            self._attempt(partial(self._finish, record))
            self._attempt(partial(self._discard, record))
        self._attempt(self._resources.drop_all)

    def complete(self, records: Iterable[RequestRecord], failure: EngineFailure | None) -> None:
        """Give every open response its end."""
        error = Unavailable("the engine failed" if failure else "the engine was closed")
        if failure is not None:
            error = Unavailable(f"the engine failed: {failure}")
        for record in records:
            self._attempt(partial(self._walk_to_end, record))
            if not record.response.done:
                record.response.end(Failed(error), failure)

    def refuse(self, message: Message, failure: EngineFailure | None) -> None:
        """Answer what never reached the worker's tables."""
        if isinstance(message, Submit):
            self.complete([message.record], failure)
        elif isinstance(message, Abandon):
            message.record.response.release()
        elif isinstance(message, Ask):
            message.answer.set_exception(Unavailable("the engine is no longer available"))

    def _attempt(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:
            self.troubles.append(error)

    def _end_context(self) -> None:
        context = self._contexts.current
        if context is None:
            return
        context.transaction.cancel()
        for _ in range(_ADVANCES):
            self._contexts.advance()
            if not self._contexts.open:
                return
            time.sleep(_ADVANCE_PAUSE)
        raise EngineFailure("a cancelled context transaction did not settle")

    def _finish(self, record: RequestRecord) -> None:
        sequence, record.sequence = record.sequence, None
        if sequence is not None:
            self._program.finish(sequence, keep=False)

    def _discard(self, record: RequestRecord) -> None:
        resume, record.resume = record.resume, None
        if resume is not None:
            self._program.discard(resume)

    def _walk_to_end(self, record: RequestRecord) -> None:
        """Take the legal edges from wherever the request stands."""
        if record.state is RequestState.MATERIALIZING:
            self._transitions.move(record, RequestState.WAITING)
        if record.state is RequestState.PAUSING and record.before_pause is not None:
            self._transitions.move(record, record.before_pause)
        if record.state in RUNNABLE:
            self._transitions.move(record, RequestState.MODEL_FINISHED)
        if record.state is not RequestState.ENDED:
            self._transitions.move(record, RequestState.ENDED)
