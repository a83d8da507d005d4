"""How fast states and pages move, measured at start: what ranks sources by their cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from ninfer_core.device.base import Lane
from ninfer_core.store.host_arena import Extent
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.program.transfers import Transfers

_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second from the host to the device, to the host, and within the device; 0 for what
    was not measured, which then counts as free."""

    load: float = 0.0
    save: float = 0.0
    copy: float = 0.0

    def seconds(self, loaded: int, copied: int) -> float:
        """To move so many bytes from the host and within the device."""
        pairs = ((loaded, self.load), (copied, self.copy))
        return sum(size / rate for size, rate in pairs if rate)


def measured(transfers: Transfers, state: ModelState, scratch: int) -> Rates:
    """Move one state image each way: between ``scratch``, a slot that is never allocated, and the
    beginning of the host memory, which holds nothing yet; and from slot 0 to ``scratch``, since a
    copy onto itself moves nothing. The best of a few times, of whole transfers as a restore makes
    them."""
    size = transfers.slot_bytes
    if size > transfers.host_bytes:
        return Rates()
    extents = [Extent(0, size, 0)]
    return Rates(
        load=size / _best(transfers.lane_in, lambda: transfers.load(scratch, (), extents)),
        save=size / _best(transfers.lane_out, lambda: transfers.save(scratch, (), extents)),
        copy=size / _best(transfers.compute, lambda: state.copy_slot(0, scratch)),
    )


def _best(lane: Lane, move: Callable[[], object]) -> float:
    """Seconds until what ``move`` enqueues on ``lane`` has passed."""
    taken = []
    for _ in range(_REPEATS):
        lane.synchronize()
        started = perf_counter()
        move()
        lane.synchronize()
        taken.append(perf_counter() - started)
    return max(min(taken), 1e-9)
