"""The root of every error that NInfer raises on purpose."""

from __future__ import annotations


class NinferError(Exception):
    """An expected failure: ``str(error)`` is one line for people, ``hint`` says how to mend it."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message
