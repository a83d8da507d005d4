"""How many requests may be outstanding at once."""

from __future__ import annotations

import threading

from ninfer_core.contract.errors import Overloaded


class OutstandingGate:
    """Counts the requests between submit and the release of their capacity. Thread safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._count = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        return self._count

    def take(self) -> None:
        """Occupy one place. Raises Overloaded when none is left."""
        with self._lock:
            if self._count >= self.limit:
                raise Overloaded(
                    f"{self._count} requests are outstanding and the engine takes {self.limit}",
                    hint="retry later or start with a larger --max-pending-requests",
                )
            self._count += 1

    def give_back(self) -> None:
        with self._lock:
            self._count -= 1
