"""Programmable faults for the fakes: which step raises, and when."""

from __future__ import annotations

from collections import Counter


class FaultPlan:
    """Steps call :meth:`check` with their name; an armed step raises once and is disarmed."""

    def __init__(self) -> None:
        self._armed: dict[str, tuple[int, BaseException]] = {}
        self.reached: Counter[str] = Counter()

    def arm(self, step: str, error: BaseException, after: int = 0) -> None:
        """Have ``step`` raise ``error``, after it passed ``after`` more times."""
        self._armed[step] = (after, error)

    def disarm(self) -> None:
        self._armed.clear()

    def check(self, step: str) -> None:
        self.reached[step] += 1
        if step not in self._armed:
            return
        after, error = self._armed[step]
        if after > 0:
            self._armed[step] = (after - 1, error)
            return
        del self._armed[step]
        raise error
