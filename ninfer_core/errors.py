"""The root of every error that NInfer raises on purpose."""

from __future__ import annotations

from typing import ClassVar


class NinferError(Exception):
    """An expected failure: ``str(error)`` is one line for people, ``hint`` says how to mend it.

    ``exit_code`` is that of a command which it ends: 2 for what was asked wrongly (options, files,
    plug-ins, requests), 1 for what failed while it was done.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(NinferError):
    """What was asked is wrong: an option, its value, or options that contradict each other."""

    exit_code = 2
