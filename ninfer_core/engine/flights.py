"""A unit between launch and settlement."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_core.contract.units import Launched, PendingBatch
from ninfer_core.engine.request_record import RequestRecord


@dataclass(slots=True, eq=False)
class Flight:
    """A launched unit and its rows; ``pending`` from collect until commit or abort.

    ``extents`` are the tokens that each row may produce at most; ``last`` says that a chunk ends
    the prompt or the replay.
    """

    launched: Launched
    records: tuple[RequestRecord, ...]
    extents: tuple[int, ...] = ()
    last: bool = False
    pending: PendingBatch | None = None
