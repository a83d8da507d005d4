"""Units on their way: launch in order, and whatever stands between launch and commit.

A round launched ahead stays in flight over the end of its cycle. In the next one control and chunk
are launched behind it, then the round that goes on from it; then it is settled, control and chunk
after it, and the new round stays. So the device has the next round before the host waits for the
present one, whatever ran in between, and everything is settled in launch order.
"""

from __future__ import annotations

from collections.abc import Callable
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
from ninfer_core.engine.flights import Flight
from ninfer_core.engine.permits import PermitDesk, Permitted, PermittedUnits
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.scheduler import Scheduler


class UnitRunner:
    """Launches control, decode and chunk. ``flights`` are all units that are not yet settled, in
    launch order, ``round`` the latest decode round among them."""

    def __init__(self, program: Program, scheduler: Scheduler, permits: PermitDesk) -> None:
        self._program = program
        self._scheduler = scheduler
        self._permits = permits
        self._ahead = program.limits.rounds_ahead > 0
        self._unfinished: list[Flight] = []
        self.flights: list[Flight] = []
        self.round: Flight | None = None

    def launch(self, units: PermittedUnits) -> tuple[Flight, ...]:
        """At most one unit of each kind, with disjoint rows. Decode rows that come behind a round
        in flight wait for :meth:`launch_ahead`.

        Returns what is in flight now and settles in this cycle, in launch order.
        """
        if units.control:
            forced = [_control_row(row) for row in units.control]
            self._fly(self._program.launch_control(forced), units.control)
        if units.decode and not units.behind:
            self.round = self._fly(
                self._program.launch_decode([_decode_row(r) for r in units.decode]), units.decode
            )
        for row in units.chunk:
            self._launch_chunk(row)
        return tuple(self.flights)

    def finish(self) -> None:
        """Fill the masks, and enqueue the sampling half, of what was launched since."""
        for flight in self._unfinished:
            flight.launched.finish()
        self._unfinished.clear()

    def launch_ahead(self, units: PermittedUnits) -> None:
        """Enqueue the next decode round behind the one in flight, for the rows that need the host
        for nothing in between and, behind a round of an earlier cycle, for those that join.

        Where a row has masks, the sampling half waits for :meth:`finish`: they depend on what the
        round before is found to have said, and are filled while the device runs the model."""
        if units.again and self.round is not None:
            self._launch_again(self.round)
        elif self._ahead and self.round is not None:
            rows = units.decode if units.behind else self._permits.go_on(self.round)
            if rows:
                asked = [_decode_row(row) for row in rows]
                launched = self._program.launch_decode(asked, ahead_of=self.round.launched)
                self.round = self._fly(launched, rows)
                if all(row.masks is None for row in asked):
                    self.finish()
        self._permits.launched()

    def settled(self, flight: Flight) -> None:
        self.flights.remove(flight)
        if self.round is flight:
            self.round = None
        for record, extent in zip(flight.records, flight.extents, strict=True):
            record.flying -= extent

    def abandon(self, attempt: Callable[[Callable[[], object]], object]) -> None:
        """Drain what is in flight, in launch order, and roll it back, the latest first. ``attempt``
        swallows what a call raises."""
        attempt(self._permits.give_back)
        for flight in self.flights:
            attempt(partial(_drain, flight))
        for flight in reversed(self.flights):
            attempt(partial(self._roll_back, flight))
        self.flights.clear()
        self._unfinished.clear()
        self.round = None

    def _roll_back(self, flight: Flight) -> None:
        if flight.pending is not None and not flight.pending.consumed:
            self._program.abort(flight.pending)

    def _launch_again(self, before: Flight) -> None:
        launched = self._program.launch_again(before.launched)
        self.round = self._take_off(launched, before.records, before.extents)
        self.finish()

    def _launch_chunk(self, row: Permitted) -> None:
        need = row.permit.need
        replay = need.kind is UnitKind.REPLAY
        launch = self._program.launch_replay if replay else self._program.launch_prefill
        self._scheduler.served(row.record)
        self._fly(launch(_chunk_row(row)), [row], last=need.last)

    def _fly(self, launched: Launched, rows: list[Permitted], last: bool = False) -> Flight:
        records = tuple([row.record for row in rows])
        return self._take_off(launched, records, tuple([r.permit.need.tokens for r in rows]), last)

    def _take_off(
        self,
        launched: Launched,
        records: tuple[RequestRecord, ...],
        extents: tuple[int, ...],
        last: bool = False,
    ) -> Flight:
        flight = Flight(launched, records, extents, last)
        for record, extent in zip(records, extents, strict=True):
            record.flying += extent
        self.flights.append(flight)
        self._unfinished.append(flight)
        return flight


def _drain(flight: Flight) -> None:
    if flight.pending is None:
        outcome = flight.launched.collect()
        flight.pending = outcome if isinstance(outcome, PendingBatch) else None


def _control_row(row: Permitted) -> ControlRow:
    return ControlRow(
        sequence=row.permit.sequence,
        permit=row.permit,
        token_ids=row.record.forced[: row.permit.need.tokens],
    )


def _decode_row(row: Permitted) -> DecodeRow:
    record, permit = row.record, row.permit
    return DecodeRow(sequence=permit.sequence, permit=permit, masks=record.session.masks())


def _chunk_row(row: Permitted) -> ChunkRow:
    need = row.permit.need
    samples = need.kind is UnitKind.PREFILL and need.last
    masks = row.record.session.masks() if samples else None
    return ChunkRow(sequence=row.permit.sequence, permit=row.permit, masks=masks)
