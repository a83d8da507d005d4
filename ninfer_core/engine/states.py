"""The states of a request and the edges between them, as tables."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Protocol

from ninfer_core.contract.errors import EngineFailure


class RequestState(enum.Enum):
    """Where a request stands. Looked up in sets for every row of every round: members are single,
    so that their identity is a hash that costs nothing."""

    __hash__ = object.__hash__

    WAITING = "waiting"
    MATERIALIZING = "materializing"
    PREFILL = "prefill"
    REPLAY = "replay"
    DECODE_READY = "decode_ready"
    CONTROL_READY = "control_ready"
    PAUSING = "pausing"
    PAUSED = "paused"
    MODEL_FINISHED = "model_finished"
    ENDED = "ended"


_S = RequestState
EdgeTable = Mapping[RequestState, frozenset[RequestState]]

RUNNABLE = frozenset({_S.PREFILL, _S.REPLAY, _S.DECODE_READY, _S.CONTROL_READY})
"""Resident, at a stable boundary, and in need of a unit."""

CHUNKED = frozenset({_S.PREFILL, _S.REPLAY})
"""The next unit is a chunk, of which one runs per cycle."""

PROGRESS: EdgeTable = {
    _S.WAITING: frozenset({_S.MATERIALIZING}),
    _S.MATERIALIZING: RUNNABLE,
    _S.PREFILL: frozenset({_S.DECODE_READY, _S.PAUSING, _S.MODEL_FINISHED}),
    _S.REPLAY: frozenset({_S.PREFILL, _S.DECODE_READY, _S.CONTROL_READY, _S.PAUSING}),
    _S.DECODE_READY: frozenset({_S.CONTROL_READY, _S.PAUSING, _S.MODEL_FINISHED}),
    _S.CONTROL_READY: frozenset({_S.DECODE_READY, _S.PAUSING, _S.MODEL_FINISHED}),
    _S.PAUSING: frozenset({_S.PAUSED}),
    _S.PAUSED: frozenset({_S.MATERIALIZING}),
    _S.MODEL_FINISHED: frozenset({_S.ENDED}),
}
"""The way of a request that nobody disturbs, including pause and resume."""

STOPPED: EdgeTable = {
    _S.WAITING: frozenset({_S.ENDED}),
    _S.REPLAY: frozenset({_S.MODEL_FINISHED}),
    _S.PAUSED: frozenset({_S.ENDED}),
}
"""What cancellation, deadlines and failures add. A request inside a context transaction ends from
where the transaction leaves it."""

UNDONE: EdgeTable = {
    _S.MATERIALIZING: frozenset({_S.WAITING, _S.PAUSED}),
    _S.PAUSING: RUNNABLE,
}
"""Where an aborted context transaction puts its request back."""

LEGAL_EDGES: frozenset[tuple[RequestState, RequestState]] = frozenset(
    (old, new)
    for table in (PROGRESS, STOPPED, UNDONE)
    for old, targets in table.items()
    for new in targets
)


class Stateful(Protocol):
    state: RequestState


EdgeObserver = Callable[[Stateful, RequestState, RequestState], None]


class Transitions:
    """The only place where a request changes state. ``count`` grows with every edge taken."""

    def __init__(self) -> None:
        self.count = 0
        self.observers: list[EdgeObserver] = []

    def move(self, subject: Stateful, new: RequestState) -> None:
        """Take one edge. Raises EngineFailure when the tables do not have it."""
        old = subject.state
        if (old, new) not in LEGAL_EDGES:
            raise EngineFailure(f"a request cannot go from {old.value} to {new.value}")
        subject.state = new
        self.count += 1
        for observer in self.observers:
            observer(subject, old, new)
