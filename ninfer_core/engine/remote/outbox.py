"""Events on their way out of the engine's process: the worker adds, once a cycle they leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ninfer_core.contract.engine import AvailabilityState
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.events import GenerationEvent
from ninfer_core.engine.lifecycle import Lifecycle, Message
from ninfer_core.engine.remote.channel import Channel
from ninfer_core.engine.remote.frames import encode_plain
from ninfer_core.engine.remote.messages import State
from ninfer_core.engine.remote.wire_events import pack_event
from ninfer_core.engine.response import Response, Terminal


class Outbox:
    """Collects what the worker publishes. Used by the worker thread alone; it neither packs nor
    pickles anything there."""

    __slots__ = ("_channel", "pending")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.pending: list[Any] = []

    def flush(self) -> None:
        """What was added since the last time leaves as one message."""
        batch, self.pending = self.pending, []
        self._channel.post(batch)

    def tell(self, message: object) -> None:
        """Send ``message`` behind what is pending."""
        if self.pending:
            self.flush()
        self._channel.send(message)


def pack_round(batch: list[Any]) -> bytes:
    """One message of everything in ``batch``: (number, events) or (number, end, failure)."""
    entries = []
    for item in batch:
        if len(item) == 2:
            number, events = item
            entries += [pack_event(number, event) for event in events]
        else:
            entries.append(pack_event(*item))
    return encode_plain(entries)


class OutgoingResponse(Response):
    """A response whose consumer is in another process: its events go to the outbox."""

    def __init__(
        self, number: int, outbox: Outbox, on_settled: Callable[[], None] | None = None
    ) -> None:
        super().__init__(on_settled)
        self._number = number
        self._outbox = outbox

    def put(self, *events: GenerationEvent) -> None:
        if self._terminal is not None:
            raise EngineFailure("an event was published after the end of its request")
        if not self._released:
            self._outbox.pending.append((self._number, events))

    def end(self, event: Terminal, failure: EngineFailure | None = None) -> None:
        """Also of a released request: the other end returns its capacity, too."""
        super().end(event, failure)
        self._outbox.pending.append((self._number, event, failure))


class OutgoingLifecycle(Lifecycle):
    """Looks after the outbox whenever the worker looks at its inbox, which is once a cycle, right
    after a round was published, and before every sleep."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def take(self) -> Message | None:
        if self._outbox.pending:
            self._outbox.flush()
        return super().take()

    def shut(self, state: AvailabilityState, reason: str | None = None) -> None:
        super().shut(state, reason)
        self._outbox.tell(State(self.availability()))
