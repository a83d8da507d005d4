"""Units on their way: launch in order, and whatever stands between launch and commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ninfer_core.contract.program import Program
from ninfer_core.contract.units import (
    ChunkRow,
    ControlRow,
    DecodeRow,
    Launched,
    PendingBatch,
    UnitKind,
)
from ninfer_core.engine.permits import PermitDesk, Permitted, PermittedUnits
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.scheduler import Scheduler


@dataclass(slots=True)
class Flight:
    """A launched unit and its rows; ``pending`` from collect until commit or abort.

    ``last`` says that a chunk ends the prompt or the replay.
    """

    launched: Launched
    records: tuple[RequestRecord, ...]
    last: bool = False
    pending: PendingBatch | None = None


class UnitRunner:
    """Launches control, decode and chunk. ``flights`` are all units that are not yet settled."""

    def __init__(self, program: Program, scheduler: Scheduler, permits: PermitDesk) -> None:
        self._program = program
        self._scheduler = scheduler
        self._permits = permits
        self.flights: list[Flight] = []

    def launch(self, units: PermittedUnits) -> tuple[Flight, ...]:
        """At most one unit of each kind, with disjoint rows; returned in launch order."""
        if units.control:
            forced = [_control_row(row) for row in units.control]
            self._fly(self._program.launch_control(forced), units.control)
        if units.decode:
            self._fly(
                self._program.launch_decode([_decode_row(r) for r in units.decode]), units.decode
            )
        for row in units.chunk:
            self._launch_chunk(row)
        self._permits.launched()
        return tuple(self.flights)

    def settled(self, flight: Flight) -> None:
        self.flights.remove(flight)

    def abandon(self, attempt: Callable[[Callable[[], object]], object]) -> None:
        """Drain what is in flight and roll it back. ``attempt`` swallows what a call raises."""
        for flight in self.flights:
            attempt(partial(self._roll_back, flight))
        self.flights.clear()
        attempt(self._permits.give_back)

    def _roll_back(self, flight: Flight) -> None:
        pending = flight.pending
        if pending is None:
            outcome = flight.launched.collect()
            pending = outcome if isinstance(outcome, PendingBatch) else None
        if pending is not None and not pending.consumed:
            self._program.abort(pending)

    def _launch_chunk(self, row: Permitted) -> None:
        need = row.permit.need
        replay = need.kind is UnitKind.REPLAY
        launch = self._program.launch_replay if replay else self._program.launch_prefill
        self._scheduler.served(row.record)
        self._fly(launch(_chunk_row(row)), [row], last=need.last)

    def _fly(self, launched: Launched, rows: list[Permitted], last: bool = False) -> None:
        self.flights.append(Flight(launched, tuple(row.record for row in rows), last))


def _control_row(row: Permitted) -> ControlRow:
    return ControlRow(
        sequence=row.permit.sequence,
        permit=row.permit,
        token_ids=row.record.forced[: row.permit.need.tokens],
    )


def _decode_row(row: Permitted) -> DecodeRow:
    return DecodeRow(
        sequence=row.permit.sequence, permit=row.permit, masks=row.record.session.masks()
    )


def _chunk_row(row: Permitted) -> ChunkRow:
    need = row.permit.need
    samples = need.kind is UnitKind.PREFILL and need.last
    masks = row.record.session.masks() if samples else None
    return ChunkRow(sequence=row.permit.sequence, permit=row.permit, masks=masks)
