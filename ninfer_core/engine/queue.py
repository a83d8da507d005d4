"""The waiting requests, in ticket order, and the times at which requests run out."""

from __future__ import annotations

import bisect
import enum
import heapq

from ninfer_core.engine.request_record import RequestRecord


def by_ticket(record: RequestRecord) -> int:
    return record.ticket


class TicketQueue:
    """Waiting requests by ticket, with bounded bypass.

    A scan may look at the head and ``reach`` followers, and nobody is overtaken more than
    ``reach`` times.
    """

    def __init__(self, reach: int) -> None:
        self.reach = reach
        self._records: list[RequestRecord] = []

    def __len__(self) -> int:
        return len(self._records)

    def push(self, record: RequestRecord) -> None:
        bisect.insort(self._records, record, key=by_ticket)

    def remove(self, record: RequestRecord) -> None:
        self._records.remove(record)

    def candidates(self) -> list[RequestRecord]:
        """The head and its followers within reach, up to the first that nobody may overtake."""
        found: list[RequestRecord] = []
        for record in self._records[: 1 + self.reach]:
            found.append(record)
            if record.bypassed >= self.reach:
                break
        return found

    def overtake(self, admitted: RequestRecord) -> None:
        """Count one bypass for everybody who waits with an older ticket than ``admitted``."""
        for record in self._records:
            if record.ticket > admitted.ticket:
                break
            record.bypassed += 1


class DeadlineKind(enum.IntEnum):
    QUEUE = 0
    REQUEST = 1


class DeadlineHeap:
    """Times to look at a request again, by ticket, so that ended requests are not kept alive."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, DeadlineKind]] = []

    def push(self, at: float | None, ticket: int, kind: DeadlineKind) -> None:
        if at is not None:
            heapq.heappush(self._heap, (at, ticket, kind))

    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def expired(self, now: float) -> list[tuple[int, DeadlineKind]]:
        due: list[tuple[int, DeadlineKind]] = []
        while self._heap and self._heap[0][0] <= now:
            _, ticket, kind = heapq.heappop(self._heap)
            due.append((ticket, kind))
        return due
