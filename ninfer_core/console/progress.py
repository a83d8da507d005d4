"""Something to look at while work is done; nothing is drawn where stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ninfer_core.artifact.convert import ProgressEvent

_LABELS = {"hash": "reading", "convert": "converting"}


def spinner(text: str) -> AbstractContextManager[object]:
    """A turning sign beside ``text``."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(text)


class Meter:
    """A bar in bytes. While entered it takes conversion events, or plain counts for one label.

    ``check`` is called before every update and may raise to stop the work. Nothing is drawn before
    the first update.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._visible = sys.stderr.isatty()
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def conversion(self, event: ProgressEvent) -> None:
        """Show a conversion's progress; its last phase has no bytes to count."""
        if event.phase in _LABELS:
            self.update(_LABELS[event.phase], event.done, event.total)

    def update(self, label: str, done: int, total: int) -> None:
        """Show ``done`` of ``total`` bytes."""
        self._check()
        if not self._visible:
            return
        if self._bars is None:
            self._bars = _bars()
            self._bars.start()
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=total)
        self._bars.update(self._tasks[label], completed=done)


def _bars() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description:>10}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
