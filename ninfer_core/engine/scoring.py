"""The core of an engine opened for causal scoring: one program, one question at a time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ninfer_core.contract.engine import AvailabilityState
from ninfer_core.contract.errors import ContextLengthExceeded, InvalidRequest, Unavailable
from ninfer_core.contract.program import ScoringProgram
from ninfer_core.engine.lifecycle import Ask, Lifecycle, Stop

_log: Final = logging.getLogger("ninfer.engine")


class ScoringCore:
    """Has no scheduler, no lanes and no cache; callers wait in the inbox."""

    def __init__(self, program: ScoringProgram, max_context: int, lifecycle: Lifecycle) -> None:
        self._program = program
        self._max_context = max_context
        self._lifecycle = lifecycle

    def run(self) -> None:
        """Answer questions until a Stop."""
        try:
            self._serve()
            self._lifecycle.shut(AvailabilityState.CLOSED)
        except BaseException as error:
            _log.critical("the engine failed", exc_info=error)
            self._lifecycle.shut(AvailabilityState.FAILED, str(error))
        finally:
            self._refuse_rest()

    def score(self, token_ids: Sequence[int], first_target: int) -> list[float]:
        """From any thread. Raises InvalidRequest, ContextLengthExceeded, Unavailable."""
        ids = [int(token) for token in token_ids]
        if not 1 <= first_target <= len(ids):
            raise InvalidRequest(
                f"first_target is {first_target}; it must lie between 1 and {len(ids)}, "
                "the number of tokens",
                param="first_target",
            )
        if len(ids) > self._max_context:
            raise ContextLengthExceeded(len(ids), self._max_context)
        return self._lifecycle.ask(lambda: self._program.score(ids, first_target))

    def _serve(self) -> None:
        while True:
            self._lifecycle.wait(None)
            message = self._lifecycle.take()
            if isinstance(message, Stop):
                return
            if isinstance(message, Ask):
                message.run()

    def _refuse_rest(self) -> None:
        while (message := self._lifecycle.take()) is not None:
            if isinstance(message, Ask):
                message.answer.set_exception(Unavailable("the engine was closed"))
