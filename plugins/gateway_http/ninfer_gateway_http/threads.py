"""Where work is done that would hold up the event loop: no kind of it keeps another from a thread.

Python runs one thread at a time, so of work that is felt little goes on at once; what merely waits
has room of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from ninfer_core.contract.errors import Overloaded
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.requests import PromptInput

LONG_CHARS: Final = 1 << 16
"""Reading more than this takes long enough to be felt."""
_LONG_THREADS: Final = 2
_FORM_THREADS: Final = 16
_FORMS_IN_LINE: Final = 256
_long: Final = ThreadPoolExecutor(_LONG_THREADS, thread_name_prefix="ninfer-http-long")

T = TypeVar("T")


async def at_length(work: Callable[[], T]) -> T:
    """What ``work`` returns, which takes its time: a few of its kind run at once, in turn."""
    return await _within(_long, work)


class Forms:
    """Runs what may wait for a compile, ``threads`` at once; more stand in line, up to a bound."""

    def __init__(self, threads: int = _FORM_THREADS, in_line: int = _FORMS_IN_LINE) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ninfer-http-form")
        self._most = threads + in_line
        self._count = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What ``work`` returns. Raises Overloaded when the line is full."""
        if self._count >= self._most:
            raise Overloaded(
                f"{self._count} requests wait for the forms of their answers", hint="retry later"
            )
        self._count += 1
        try:
            return await _within(self._pool, work)
        finally:
            self._count -= 1


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


async def _within(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    run: Callable[[], T] = partial(contextvars.copy_context().run, work)
    return await asyncio.get_running_loop().run_in_executor(pool, run)
