"""Waiting for a word that the device writes into pinned memory when a round is done.

A waiting thread sleeps most of the time that the round should take, looks without pause for a
moment, and then gives the interpreter's lock away between looks: spinning around calls that drop
the lock only briefly would starve every other thread of the process.

After milliseconds of sleep the caches hold nothing of a thread any more, and what it does next
takes several times as long. A long wait therefore ends with a rehearsal, if the caller has one.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.device.errors import DeviceError, DeviceTimeout

SLEEP_SHARE = 0.85
"""Part of the expected time that is slept away."""

SLEEP_MARGIN = 100e-6
"""Seconds before the end of that part at which a sleeper is called back, for a late wake-up."""

LONG_SLEEP_MARGIN = 600e-6
"""Seconds before the end at which a sleeper is called back when its share is over too soon."""

REHEARSED = 2e-3
"""Expected seconds from which on a wait ends with a rehearsal."""

SPIN = 100e-6
"""Seconds of looking without pause."""

CHECK_EVERY = 5e-3
"""Seconds of waiting between two checks that the device lives."""

DEADLINE = 60.0
"""Seconds after which a round is given up."""

_PR_SET_TIMERSLACK = 29


class Flag:
    """An int32 word in host memory that the device writes; reading it costs one load."""

    __slots__ = ("_tensor", "_word")

    def __init__(self, word: Tensor) -> None:
        if word.dtype != torch.int32 or word.numel() != 1 or word.device.type != "cpu":
            raise DeviceError(
                f"a flag is one int32 in host memory, not {word.dtype} {list(word.shape)} "
                f"on {word.device}"
            )
        self._tensor = word
        self._word = ctypes.c_int32.from_address(word.data_ptr())

    def read(self) -> int:
        """What the word holds now."""
        return self._word.value

    def wait(
        self,
        value: int,
        expected_seconds: float,
        *,
        check: Callable[[], object] | None = None,
        rehearse: Callable[[], object] | None = None,
        what: str = "a round",
        deadline_seconds: float = DEADLINE,
    ) -> bool:
        """Return once the word equals ``value``: True if it did before a sleep or a rehearsal was
        over.

        ``expected_seconds`` is how much longer the work should take. ``check`` is called about
        every 5 ms of waiting and raises when the device is lost. ``rehearse`` is called once, at
        the end of a long sleep. Raises DeviceTimeout, naming ``what``, when ``deadline_seconds``
        are over.
        """
        word = self._word
        if word.value == value:
            return False
        now = time.perf_counter()
        deadline = now + deadline_seconds
        self._sleep(value, min(now + _sleep(expected_seconds), deadline), check)
        if word.value == value:
            return True
        if rehearse is not None and expected_seconds >= REHEARSED:
            rehearse()
            if word.value == value:
                return True
        end = time.perf_counter() + SPIN
        while word.value != value and time.perf_counter() < end:
            pass
        self._poll(value, check, what, deadline, deadline_seconds)
        return False

    def _sleep(self, value: int, end: float, check: Callable[[], object] | None) -> None:
        word = self._word
        while word.value != value and (left := end - time.perf_counter()) > 0:
            time.sleep(min(left, CHECK_EVERY))
            if check is not None and left > CHECK_EVERY:
                check()

    def _poll(
        self,
        value: int,
        check: Callable[[], object] | None,
        what: str,
        deadline: float,
        seconds: float,
    ) -> None:
        word = self._word
        next_check = time.perf_counter() + CHECK_EVERY
        while word.value != value:
            time.sleep(0)
            now = time.perf_counter()
            if now < next_check:
                continue
            next_check = now + CHECK_EVERY
            if check is not None:
                check()
            if now > deadline and word.value != value:
                raise DeviceTimeout(
                    f"{what} did not end within {seconds:g} s: its flag is {word.value}, "
                    f"not {value}"
                )


def _sleep(expected: float) -> float:
    """Seconds to sleep through; negative for a wait too short for that."""
    return max(SLEEP_SHARE * expected - SLEEP_MARGIN, expected - LONG_SLEEP_MARGIN)


def set_timer_slack(nanoseconds: int = 1) -> bool:
    """Let the calling thread's sleeps end on time: Linux lets them run over by 50 us otherwise.

    Returns whether the system took it; there is nothing to set elsewhere than on Linux.
    """
    if not sys.platform.startswith("linux"):
        return False
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return int(prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(nanoseconds))) == 0
