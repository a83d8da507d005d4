"""The device interface that programs and ops' callers are written against.

Everything large is allocated before the first request, as a few arenas that are cut up by name;
work is enqueued on lanes; a round is a captured graph. A thread enters its lane once, not per
round.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ninfer_core.device.errors import DeviceError
    from ninfer_core.hookspecs.devices import DeviceFacts

ALIGNMENT = 256
"""Bytes to which every sub-allocation of an arena is aligned."""


class LaneRole(enum.Enum):
    """The ordered queues of a device: one to compute, one for each direction of copies."""

    COMPUTE = "compute"
    COPY_IN = "copy_in"
    COPY_OUT = "copy_out"


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Bytes of the device's memory: all of it, and what was free when asked."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a named sub-allocation lies in its arena: bytes from its start, and its length."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class DeviceCounters:
    """What a device has ever created; equal before and after means nothing was created between.

    ``allocations`` are requests that a tensor library's own allocator made of the device, beside
    the arenas; 0 where there is none.
    """

    arenas: int
    takes: int
    graphs: int
    allocations: int


class Event(Protocol):
    """A point in a lane."""

    def done(self) -> bool:
        """Whether the lane has passed it; does not wait."""
        ...

    def wait(self) -> None:
        """Make the calling thread wait until the lane has passed it."""
        ...


class Lane(Protocol):
    """An ordered queue of device work, owned by its device.

    Whatever finds that the device has failed for good raises DeviceLost.
    """

    @property
    def role(self) -> LaneRole: ...

    def enter(self) -> AbstractContextManager[None]:
        """Make this lane the one that the calling thread's work goes to."""
        ...

    def record(self) -> Event:
        """Mark what has been enqueued so far."""
        ...

    def wait_for(self, event: Event) -> None:
        """Let later work of this lane wait for ``event``; the calling thread goes on."""
        ...

    def query(self) -> bool:
        """Whether everything enqueued is done; does not wait."""
        ...

    def synchronize(self) -> None:
        """Make the calling thread wait until the lane is empty."""
        ...


class Arena(Protocol):
    """One block of memory for one purpose, cut into named tensors that live as long as it does."""

    @property
    def purpose(self) -> str: ...

    @property
    def capacity(self) -> int:
        """Bytes in all."""
        ...

    @property
    def free(self) -> int:
        """Bytes that are not taken."""
        ...

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The next part as a contiguous tensor, aligned to :data:`ALIGNMENT`, contents undefined.

        Raises ArenaExhausted when it does not fit, DeviceError for a name that is taken, a negative
        size, or an arena that is closed.
        """
        ...

    def layout(self) -> Mapping[str, Extent]:
        """What was taken, in order."""
        ...

    def close(self) -> None:
        """Give the block back. Idempotent; tensors taken from it must not be used any more."""
        ...


class PinnedPool(Arena, Protocol):
    """An arena of host memory that the device reads and writes directly."""


class Graph(Protocol):
    """A captured sequence of device work over tensors that outlive it."""

    def replay(self) -> None:
        """Enqueue the work again on the lane it was captured on; inputs are read where they lie.

        The calling thread has entered a lane of the device. Waits where many replays lie undone.
        """
        ...

    def close(self) -> None:
        """Release it. Idempotent; a replay after it raises DeviceError."""
        ...


class Device(Protocol):
    """One processor with its memory, lanes and graphs.

    ``close`` releases graphs, pinned pools, arenas and lanes in that order.
    """

    @property
    def name(self) -> str:
        """As a user would write it: ``cpu``, ``cuda:0``."""
        ...

    @property
    def facts(self) -> DeviceFacts:
        """Kind, model, capability, memory: what op backends are asked about."""
        ...

    @property
    def torch_device(self) -> torch.device:
        """What torch calls it."""
        ...

    def explain(self, error: BaseException) -> DeviceError | None:
        """What an error that a library threw means for this device; None if it is not of it."""
        ...

    def lane(self, role: LaneRole) -> Lane:
        """The lane of that role; the same one every time."""
        ...

    def arena(self, purpose: str, capacity: int) -> Arena:
        """Allocate a block of device memory of ``capacity`` bytes.

        Raises DeviceError with the numbers when the memory is not there, or when the purpose has an
        arena already.
        """
        ...

    def pinned(self, purpose: str, capacity: int) -> PinnedPool:
        """Allocate a block of host memory that the device can reach; as :meth:`arena`."""
        ...

    def capture(self, body: Callable[[], None], lane: Lane) -> Graph:
        """Record what ``body`` enqueues, without running it.

        ``body`` allocates nothing that outlives it, takes its inputs from tensors that stay where
        they are, decides nothing by their contents, and draws no random numbers from a generator
        that it does not own. The caller has run it once before, so that whatever compiles or sets
        itself up at a first call has done so.
        """
        ...

    def upload(self, source: Tensor, target: Tensor, lane: Lane) -> None:
        """Copy host memory into device memory, enqueued on ``lane``.

        Both are contiguous, of one shape and dtype. A source in pinned memory must keep its
        contents until the lane has passed the copy; any other source has been read when this
        returns, at the speed of pinned memory however large it is. Raises DeviceError for a pair
        that does not fit.
        """
        ...

    def reserve_workspace(self, size: int) -> None:
        """Make the tensor library hold ``size`` bytes ready for what the compute lane allocates.

        Later intermediate tensors then come from it without a request to the device. Raises
        DeviceError with the numbers when the memory is not there.
        """
        ...

    def memory(self) -> MemoryFacts: ...

    def counters(self) -> DeviceCounters: ...

    def synchronize(self) -> None:
        """Make the calling thread wait until every lane is empty."""
        ...

    def close(self) -> None: ...
