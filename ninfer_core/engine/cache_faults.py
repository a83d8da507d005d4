"""What is wrong with kept contexts does not end the engine: it goes on without them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from ninfer_core.contract.checkpoints import CheckpointAction
from ninfer_core.contract.errors import CacheFault, EngineFailure
from ninfer_core.contract.program import Program
from ninfer_core.contract.resources import CheckpointRef

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)


def blamed_on_cache(step: Callable[P, T]) -> Callable[P, T]:
    """Let what ``step`` raises by mistake be a CacheFault: it only reads and books kept contexts.
    An EngineFailure, which is meant, keeps its type."""

    @functools.wraps(step)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return step(*args, **kwargs)
        except EngineFailure:
            raise
        except Exception as error:
            raise CacheFault(f"{step.__qualname__}: {type(error).__name__}: {error}") from error

    return checked


class CacheGuard:
    """Runs what is done for the sake of the cache. A CacheFault in it drops the cache whole, is
    counted and logged, and the request goes on as without a cache.

    ``clear`` empties the engine's own books and says how much was in them, ``dropped`` counts. What
    an open transaction moves (``moved``) is deleted when that has settled.
    """

    def __init__(
        self, program: Program, clear: Callable[[], int], dropped: Callable[[], None]
    ) -> None:
        self._program = program
        self._clear = clear
        self._dropped = dropped
        self.moved: list[CheckpointRef] = []

    def run(self, step: Callable[[], T], otherwise: T) -> T:
        """What ``step`` returns, or ``otherwise``. Raises EngineFailure where not only the cache is
        wrong."""
        try:
            return step()
        except CacheFault as fault:
            self._drop(fault)
            return otherwise

    def settled(self, retired: Iterable[CheckpointRef]) -> None:
        """The open transaction is; the Program has released ``retired`` itself."""
        gone = set(retired)
        moved, self.moved = [ref for ref in self.moved if ref not in gone], []
        for ref in moved:
            self.run(functools.partial(self._program.drop, ref, CheckpointAction.DELETE), None)

    def _drop(self, fault: CacheFault) -> None:
        """Raises EngineFailure, of which the fault is the cause, where that does not help."""
        self.moved = list(self._program.forget())
        count = self._clear()
        self._dropped()
        _log.error(
            "the context cache, %d kept contexts, was dropped and fills anew: %s",
            count,
            fault.message,
            exc_info=fault,
        )
