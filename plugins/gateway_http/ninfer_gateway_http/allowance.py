"""The time that a request may take, of which waiting in the gateway is a part."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from ninfer_core.contract.errors import DeadlineExceeded, QueueTimeout, RequestError
from ninfer_core.contract.requests import GenerationOptions
from ninfer_gateway_http.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class Allowance:
    """Seconds from ``arrived``, of the monotonic clock; None is without a limit.

    ``queue`` is how long a request may wait before the engine takes it up, ``whole`` how long it
    may take.
    """

    queue: float | None
    whole: float | None
    arrived: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, settings: ServerSettings, options: GenerationOptions | None = None) -> Allowance:
        """What ``settings`` allow from now on a request with ``options``, which may ask for less
        in all and for another wait."""
        queue, whole = settings.queue_timeout, settings.request_timeout
        if options is not None:
            queue = queue if options.queue_timeout is None else options.queue_timeout
            whole = _least(whole, options.deadline)
        return cls(queue, whole)

    def rest(self, options: GenerationOptions) -> GenerationOptions:
        """``options`` with what is left for the engine. Raises what :meth:`waiting` raises."""
        waited = time.monotonic() - self.arrived
        self._refuse_after(waited)
        queue = options.queue_timeout if self.queue is None else self.queue - waited
        deadline = options.deadline if self.whole is None else self.whole - waited
        return replace(options, queue_timeout=queue, deadline=deadline)

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Ends a block that lasts until the request has waited too long.

        Raises QueueTimeout and DeadlineExceeded as the engine does.
        """
        least = _least(self.queue, self.whole)
        left = None if least is None else max(0.0, self.arrived + least - time.monotonic())
        within = asyncio.timeout(left)
        try:
            async with within:
                yield
        except TimeoutError:
            if within.expired() and least is not None:
                self._refuse_after(least)
            raise

    def _refuse_after(self, waited: float) -> None:
        if self.whole is not None and waited >= self.whole:
            raise DeadlineExceeded(
                f"the request waited past its deadline of {self.whole} s", param="deadline"
            )
        if self.queue is not None and waited >= self.queue:
            raise _queue_timeout()


def _queue_timeout() -> RequestError:
    return QueueTimeout(
        "the request waited longer than its queue timeout",
        hint="retry later or allow a longer queue timeout",
    )


def _least(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)
