"""Where work is done that would hold up the event loop: no kind of it keeps another from a thread.

Python runs one thread at a time, so of work that is felt little goes on at once; what merely waits
has room of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from ninfer_core.contract.errors import Overloaded
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.requests import PromptInput

LONG_CHARS: Final = 1 << 16
"""Reading more than this takes long enough to be felt."""
_LONG_THREADS: Final = 2
_FORM_THREADS: Final = 16
_PLAIN_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
_IN_LINE: Final = 256

T = TypeVar("T")


class Line:
    """Runs work on ``threads`` at once; more stands in line, up to a bound if there is one.

    ``awaited`` is what requests wait for here, as the refusal says it.
    """

    def __init__(self, name: str, awaited: str, *, threads: int, in_line: int | None) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"ninfer-http-{name}")
        self._awaited = awaited
        self._most = None if in_line is None else threads + in_line
        self._lock = threading.Lock()
        self._count = 0

    async def run(self, work: Callable[[], T], late: Callable[[T], None] | None = None) -> T:
        """What ``work`` returns. Raises Overloaded when the line is full.

        Cancelled while it stands in line, ``work`` leaves the line; while it runs, its result is
        given to ``late``, on any thread.
        """
        job = self._begin(partial(contextvars.copy_context().run, work))
        done = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            # Else the loop logs what nobody asks for, and texts of the request with it.
            done.add_done_callback(_look)
            if not job.cancel() and late is not None:
                job.add_done_callback(partial(_hand_over, late))
            raise

    def _begin(self, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._most is not None and self._count >= self._most:
                raise Overloaded(
                    f"{self._count} requests wait for {self._awaited}", hint="retry later"
                )
            self._count += 1
        job = self._pool.submit(work)
        job.add_done_callback(self._ended)
        return job

    def _ended(self, job: Future[Any]) -> None:
        with self._lock:
            self._count -= 1


def forms_line(threads: int = _FORM_THREADS, in_line: int = _IN_LINE) -> Line:
    """For what may wait for a compile."""
    return Line("form", "the forms of their answers", threads=threads, in_line=in_line)


_long: Final = Line("long", "long inputs to be read", threads=_LONG_THREADS, in_line=_IN_LINE)
_plain: Final = Line("plain", "a thread", threads=_PLAIN_THREADS, in_line=None)


async def at_length(work: Callable[[], T], late: Callable[[T], None] | None = None) -> T:
    """As :meth:`Line.run` for what takes its time: a few of its kind run at once, in turn."""
    return await _long.run(work, late)


async def at_once(work: Callable[[], T], late: Callable[[T], None] | None = None) -> T:
    """As :meth:`Line.run` for what is soon done, off the loop."""
    return await _plain.run(work, late)


def may_compile(prompt: PromptInput | PreparedPrompt) -> bool:
    """Whether the answer has a form, which may have to be compiled first."""
    if isinstance(prompt, PreparedPrompt):
        return prompt.grammar is not None
    calls = bool(prompt.tools) and prompt.tool_choice.mode != "none"
    return calls or prompt.response_format.kind != "text"


def is_long(prompt: PromptInput | PreparedPrompt) -> bool:
    """Whether it has yet to be read, and that takes long."""
    if isinstance(prompt, PreparedPrompt):
        return False
    left = LONG_CHARS - len(prompt.text or ()) - len(prompt.token_ids or ())
    for message in prompt.messages or ():
        left -= _chars(message.get("content")) + 1
        if left < 0:
            return True
    return left < 0


def _chars(content: Any) -> int:
    """Of the content of a message, text or a list of parts."""
    if isinstance(content, str):
        return len(content)
    parts: Sequence[Mapping[str, Any]] = content or ()
    return sum(len(part.get("text", "")) + 1 for part in parts)


def _look(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()


def _hand_over(late: Callable[[T], None], job: Future[T]) -> None:
    if not job.cancelled() and job.exception() is None:
        late(job.result())
