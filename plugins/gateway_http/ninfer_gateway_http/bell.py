"""Waiting for what arrives, without a task or a timer of its own for every wait."""

from __future__ import annotations

import asyncio
import math


class Bell:
    """One reader waits, anybody on the loop rings. Ringing while nobody waits means nothing, so the
    reader looks for itself before it waits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[bool] | None = None
        self._due = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def ring(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(True)

    async def wait(self, timeout: float | None = None) -> None:
        """Until the next ring. Raises TimeoutError after ``timeout`` seconds without one."""
        self._waiter = self._loop.create_future()
        self._due = math.inf if timeout is None else self._loop.time() + timeout
        self._set_timer()
        try:
            rung = await self._waiter
        finally:
            self._waiter = None
        if not rung:
            raise TimeoutError

    def close(self) -> None:
        """Nobody waits any more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        """One timer serves wait after wait: it is set anew where it fires early, not at a ring."""
        if self._timer is not None and self._timer.when() > self._due:
            self.close()
        if self._timer is None and self._due < math.inf:
            self._timer = self._loop.call_at(self._due, self._fired)

    def _fired(self) -> None:
        self._timer = None
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._loop.time() < self._due:
            self._set_timer()
        else:
            waiter.set_result(False)
