"""A CPU device whose copy lanes are late: a copy runs when somebody has asked often enough.

On the plain CPU device a copy is done when it is enqueued, so that nothing can be freed, rewritten
or cancelled under it. Here it reads and writes later, as a GPU's does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ninfer_core.device.base import Event, LaneRole
from ninfer_core.device.cpu import CpuDevice
from ninfer_core.ops.table import Ops


class CopyEvent:
    """Passed once what was enqueued before it has run; ``lag`` questions run one copy."""

    def __init__(self, lane: CopyLane) -> None:
        self._lane = lane
        self._after = lane.run + len(lane.waiting)

    def done(self) -> bool:
        if self._lane.run < self._after:
            self._lane.asked()
        return self._lane.run >= self._after

    def wait(self) -> None:
        while self._lane.run < self._after:
            self._lane.run_one()


class CopyLane:
    """A queue of copies."""

    def __init__(self, device: LateCopies, role: LaneRole) -> None:
        self.role = role
        self.run = 0
        self.waiting: deque[Callable[[], object]] = deque()
        self._device = device
        self._asked = 0

    def enter(self) -> AbstractContextManager[None]:
        return self._device.entered(self)

    def run_one(self) -> None:
        self.waiting.popleft()()
        self.run += 1

    def asked(self) -> None:
        self._asked += 1
        if self._asked % self._device.lag == 0:
            self.run_one()

    def record(self) -> CopyEvent:
        return CopyEvent(self)

    def wait_for(self, event: Event) -> None:
        event.wait()

    def query(self) -> bool:
        return not self.waiting

    def synchronize(self) -> None:
        while self.waiting:
            self.run_one()


class LateCopies(CpuDevice):
    """See the module. ``lag`` 0 never runs a copy unless it is waited for."""

    def __init__(self, lag: int = 3) -> None:
        super().__init__()
        self.lag = lag or 1 << 60
        self.copies = {role: CopyLane(self, role) for role in (LaneRole.COPY_IN, LaneRole.COPY_OUT)}
        self._current: CopyLane | None = None

    def lane(self, role: LaneRole) -> Any:
        return self.copies.get(role) or super().lane(role)

    @contextmanager
    def entered(self, lane: CopyLane) -> Iterator[None]:
        before, self._current = self._current, lane
        try:
            yield
        finally:
            self._current = before

    def ops(self, ops: Ops) -> Ops:
        """The same, but units are moved when the lane's turn comes."""
        return replace(
            ops,
            gather_units=partial(self._put, ops.gather_units),
            scatter_units=partial(self._put, ops.scatter_units),
        )

    def _put(self, op: Callable[..., None], *operands: Any) -> None:
        assert self._current is not None, "units are moved on a copy lane"
        self._current.waiting.append(partial(op, *operands))
