"""A CPU device that is late: graphs and copies out of pinned memory run when somebody waits.

The plain CPU device runs work when it is enqueued, so that host writes always come after device
reads. Here they come before: whatever the host rewrites while the device has yet to read it is
read wrongly. Any other op on device memory first runs what waits, so that the order of the lane
is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ninfer_core.device.base import LaneRole
from ninfer_core.device.cpu import CpuDevice, CpuGraph
from ninfer_core.device.flags import Flag


class LateEvent:
    """Passed once what was enqueued before it has run."""

    def __init__(self, lane: LateLane) -> None:
        self._lane = lane
        self._after = lane.enqueued

    def done(self) -> bool:
        return self._lane.run >= self._after

    def wait(self) -> None:
        while not self.done():
            self._lane.run_one()


class LateLane:
    """A queue that nobody works at until somebody waits for it."""

    def __init__(self, role: LaneRole) -> None:
        self.role = role
        self.enqueued = self.run = 0
        self.running = False
        self.waiting: deque[Callable[[], object]] = deque()

    def enter(self) -> AbstractContextManager[None]:
        return nullcontext()

    def put(self, work: Callable[[], object]) -> None:
        self.enqueued += 1
        self.waiting.append(work)

    def run_one(self) -> None:
        work = self.waiting.popleft()
        self.running = True
        try:
            work()
        finally:
            self.running = False
            self.run += 1

    def run_all(self) -> None:
        while self.waiting:
            self.run_one()

    def record(self) -> LateEvent:
        return LateEvent(self)

    def wait_for(self, event: LateEvent) -> None:
        """All roles share this lane, so that the order holds already."""

    def query(self) -> bool:
        return not self.waiting

    def synchronize(self) -> None:
        self.run_all()


class LateGraph(CpuGraph):
    """Put into the queue by a replay."""

    def __init__(self, body: Callable[[], None], lane: LateLane) -> None:
        super().__init__(lambda: lane.put(body))


class LateFlag(Flag):
    """Runs the queue until the word is there, and no further; a rehearsal comes before that, as in
    a round that takes long."""

    def __init__(self, word: torch.Tensor, lane: LateLane) -> None:
        super().__init__(word)
        self.lane = lane

    def wait(self, value: int, *rest: Any, **named: Any) -> bool:
        rehearse = named.get("rehearse")
        if rehearse is not None and self.read() != value:
            rehearse()
        while self.read() != value and self.lane.waiting:
            self.lane.run_one()
        return super().wait(value, *rest, **named, deadline_seconds=1.0)


class LateOutcome:
    """What a body left behind, once it has run; on a GPU the addresses are known before."""

    def __init__(self, outcome: Any, lane: LateLane) -> None:
        self._outcome = outcome
        self._lane = lane

    def __getattr__(self, name: str) -> Any:
        self._lane.run_all()
        return getattr(self._outcome, name)


class LateDevice(CpuDevice):
    """See the module. ``mode`` is entered by the thread that works with the device."""

    def __init__(self) -> None:
        super().__init__()
        self.late = LateLane(LaneRole.COMPUTE)
        self.device_memory: set[int] = set()
        self.pinned_memory: set[int] = set()
        self.mode = _InOrder(self)

    def arena(self, purpose: str, capacity: int) -> Any:
        made = super().arena(purpose, capacity)
        self.device_memory.add(_address(made))
        return made

    def pinned(self, purpose: str, capacity: int) -> Any:
        made = super().arena(purpose, capacity)
        self.pinned_memory.add(_address(made))
        return made

    def lane(self, role: LaneRole) -> Any:
        return self.late

    def capture(self, body: Callable[[], None], lane: Any) -> LateGraph:
        self._graphs.append(LateGraph(body, self.late))
        return self._graphs[-1]

    def make_late(self, program: Any) -> None:
        """Let the program's waits drive this device."""
        rounds = program._units._rounds
        rounds._flags = [LateFlag(flag._tensor, self.late) for flag in rounds._flags]
        for captured in rounds._rounds._captured.values():
            captured.outcome = LateOutcome(captured.outcome, self.late)
        if program._units._speculation is not None:
            graphs = program._units._speculation._rounds._graphs
            for key, (graph, held) in graphs.items():
                graphs[key] = graph, LateOutcome(held, self.late)


class _InOrder(TorchDispatchMode):
    """Defers copies out of pinned memory; runs the queue before other ops on device memory."""

    def __init__(self, device: LateDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, lane = kwargs or {}, self._device.late
        if lane.running:
            return func(*args, **kwargs)
        if _is_late_copy(func, args) and self._crosses(args):
            lane.put(lambda: func(*args, **kwargs))
            return args[0]
        if lane.waiting and not func.is_view and self._touches(args, kwargs):
            lane.run_all()
        return func(*args, **kwargs)

    def _crosses(self, args: Any) -> bool:
        """Whether a copy goes from pinned memory to the device, or the other way."""
        device, target, source = self._device, _home(args[0]), _home(args[1])
        if target in device.pinned_memory:
            return source in device.device_memory
        return target in device.device_memory and source in device.pinned_memory

    def _touches(self, args: Any, kwargs: Any) -> bool:
        leaves = tree_leaves((args, kwargs))
        homes = {_home(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
        return not homes.isdisjoint(self._device.device_memory)


def _is_late_copy(func: Any, args: Any) -> bool:
    return func is torch.ops.aten.copy_.default and len(args) == 3 and bool(args[2])


def _home(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _address(arena: Any) -> int:
    return _home(arena._data)
