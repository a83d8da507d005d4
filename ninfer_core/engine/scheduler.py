"""Who may execute, and in which order."""

from __future__ import annotations

import bisect
from collections import deque

from ninfer_core.engine.queue import by_ticket
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.states import CHUNKED, RUNNABLE, RequestState

_PAUSE_ATTEMPTS = 3


class Scheduler:
    """Lanes, residents and paused requests in ticket order, and the prefill rotation.

    A lane is a resident place; it says nothing of state slots, execution rows or batch rows.
    ``protected`` is the one resumed request that holds a permit up to its first new progress.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.residents: list[RequestRecord] = []
        self.paused: list[RequestRecord] = []
        self.protected: RequestRecord | None = None
        self._free_lanes = list(range(lanes))
        self._rotation: deque[RequestRecord] = deque()

    @property
    def free_lane(self) -> int | None:
        return self._free_lanes[0] if self._free_lanes else None

    def enter(self, record: RequestRecord) -> None:
        """Give ``record`` the lowest free lane."""
        record.lane = self._free_lanes.pop(0)
        bisect.insort(self.residents, record, key=by_ticket)
        self._rotation.append(record)

    def leave(self, record: RequestRecord) -> None:
        """Take the lane back. Called when the record's physical place is gone."""
        assert record.lane is not None
        bisect.insort(self._free_lanes, record.lane)
        record.lane = None
        record.blocked = False
        self.residents.remove(record)
        self._rotation.remove(record)
        self.progressed(record)

    def park(self, record: RequestRecord) -> None:
        bisect.insort(self.paused, record, key=by_ticket)

    def unpark(self, record: RequestRecord) -> None:
        self.paused.remove(record)

    def protect(self, record: RequestRecord) -> None:
        self.protected = record

    def progressed(self, record: RequestRecord) -> None:
        """New progress, or the end, closes a protected resume."""
        record.pause_aborts = 0
        record.held_back = False
        if self.protected is record:
            self.protected = None

    def permit_order(self) -> list[RequestRecord]:
        """Residents that need a unit: the protected resume first, then by ticket."""
        rows = [r for r in self.residents if r.state in RUNNABLE and r.capture is None]
        if self.protected is not None and self.protected in rows:
            rows.sort(key=lambda record: record is not self.protected)
        return rows

    def chunk_order(self) -> list[RequestRecord]:
        """Residents that need a chunk: the protected resume first, then least recently served."""
        rows = [r for r in self._rotation if r.state in CHUNKED and r.capture is None]
        if self.protected is not None and self.protected in rows:
            rows.sort(key=lambda record: record is not self.protected)
        return rows

    def served(self, record: RequestRecord) -> None:
        """``record`` got the cycle's chunk and goes to the end of the rotation."""
        self._rotation.remove(record)
        self._rotation.append(record)

    def victims(self, older_than: RequestRecord) -> list[RequestRecord]:
        """Residents that may be paused for ``older_than``, youngest first; those in flight once
        they have settled. One whose pause was undone several times in a row is left alone until it
        has moved on."""
        return [
            record
            for record in reversed(self.residents)
            if record.ticket > older_than.ticket
            and record.state in RUNNABLE
            and record.capture is None
            and record is not self.protected
            and not record.permitted
            and record.pause_aborts < _PAUSE_ATTEMPTS
        ]

    def has_resident_older_than(self, record: RequestRecord) -> bool:
        return bool(self.residents) and self.residents[0].ticket < record.ticket

    def resume_candidate(self) -> RequestRecord | None:
        """The oldest paused request, unless an older resident still lacks room itself."""
        if not self.paused or self.protected is not None:
            return None
        oldest = self.paused[0]
        short = any(r.blocked and r.ticket < oldest.ticket for r in self.residents)
        return None if short else oldest

    def anyone_blocked(self) -> bool:
        """Whether a resident got no room when it last asked; then nothing is left over."""
        return any(record.blocked for record in self.residents)

    def youngest_blocked(self) -> RequestRecord | None:
        blocked = (r for r in reversed(self.residents) if r.blocked and r.state in RUNNABLE)
        return next(blocked, None)

    def stalled(self) -> bool:
        """Whether there are residents and every one of them waits for room."""
        return bool(self.residents) and all(
            record.blocked and record.state in RUNNABLE for record in self.residents
        )

    def paused_before_all_residents(self) -> RequestRecord | None:
        """The oldest paused request, when no resident is older."""
        if not self.paused or self.has_resident_older_than(self.paused[0]):
            return None
        return self.paused[0]

    def running(self) -> int:
        return sum(record.state is not RequestState.MODEL_FINISHED for record in self.residents)
