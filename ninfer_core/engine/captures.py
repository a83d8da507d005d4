"""Restore points that a prompt leaves behind while it is read.

A capture is a gate on its request: from the restore point until its transaction has settled the
request keeps its state and is in no unit. It is optional: it waits for a transaction of somebody
else, and for a copy to the host that makes its room; it is let go when room is short or a resume is
protected.
"""

from __future__ import annotations

from ninfer_core.engine.contexts import ContextDriver
from ninfer_core.engine.reclaiming import Demotion
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.resource_manager import ResourceManager
from ninfer_core.engine.scheduler import Scheduler
from ninfer_core.engine.states import RequestState


class CaptureDesk:
    """``waiting`` are requests that stand at a restore point, in the order in which they came."""

    def __init__(
        self, scheduler: Scheduler, resources: ResourceManager, contexts: ContextDriver
    ) -> None:
        self._scheduler = scheduler
        self._resources = resources
        self._contexts = contexts
        self.waiting: list[RequestRecord] = []

    def reached(self, record: RequestRecord, frontier: int) -> None:
        """The prompt of ``record`` is read and committed up to ``frontier``."""
        if record.state is not RequestState.PREFILL:
            return
        record.capture = self._resources.wants_capture(record, frontier)
        if record.capture is not None:
            self.waiting.append(record)

    def begin(self) -> None:
        """Start what is due, as far as one transaction at a time allows."""
        while self.waiting and not self._contexts.open:
            record = self.waiting.pop(0)
            if record.capture is not None and record.state is RequestState.PREFILL:
                self._capture(record)

    def _capture(self, record: RequestRecord) -> None:
        point, record.capture = record.capture, None
        if point is None or self._inconvenient(record):
            return
        plan = self._resources.plan_capture(record, point)
        if plan is None:
            return
        record.capture = point
        if isinstance(plan, Demotion):
            self.waiting.insert(0, record)
            self._contexts.demote(plan)
        else:
            self._contexts.capture(record, plan)

    def _inconvenient(self, record: RequestRecord) -> bool:
        scheduler = self._scheduler
        short = bool(scheduler.paused) or scheduler.anyone_blocked()
        return short or scheduler.protected is not None or record.doomed is not None
