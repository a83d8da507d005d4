"""What a caller holds of a request that runs in the engine's process."""

from __future__ import annotations

import weakref

from ninfer_core.engine.handle import Consumer
from ninfer_core.engine.remote.link import Link
from ninfer_core.engine.remote.messages import Accepted
from ninfer_core.engine.response import Response


class RemoteHandle(Consumer):
    """One submitted request; implements ``contract.engine.GenerationHandle``.

    As with a handle of an engine in this process, letting go of it, by :meth:`close`, by leaving
    the ``with`` block or by dropping the last reference, abandons a request that still runs.
    """

    def __init__(
        self, link: Link, number: int, response: Response, accepted: Accepted, prompt_tokens: int
    ) -> None:
        super().__init__(response)
        self._link = link
        self._number = number
        self._accepted = accepted
        self._prompt_tokens = prompt_tokens
        self._finalizer = weakref.finalize(self, link.drop, number, response)
        self._finalizer.atexit = False

    @property
    def request_id(self) -> str:
        return self._accepted.request_id

    @property
    def prompt_tokens(self) -> int:
        return self._prompt_tokens

    @property
    def notes(self) -> tuple[str, ...]:
        """What submit changed on the way, as in ``GenerationStart.notes``."""
        return self._accepted.notes

    def cancel(self) -> None:
        """Ask for the end at the next boundary; the result keeps what was committed."""
        self._link.cancel(self._number)

    def close(self) -> None:
        """Stop consuming; cancels a request that still runs. Idempotent."""
        self._let_go()
        self._link.release(self._number)
        self._response.release()

    def _let_go(self) -> None:
        self._finalizer.detach()
