"""How a process ended, in words."""

from __future__ import annotations

import contextlib
import signal


def ending(code: int) -> str:
    """``exited with code 3`` or ``was killed by SIGKILL``."""
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
