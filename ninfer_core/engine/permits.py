"""Room for the coming units, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.program import Program
from ninfer_core.contract.resources import NeverFits, Shortfall
from ninfer_core.contract.units import Permit, UnitKind, UnitNeed
from ninfer_core.engine.admission import never_fits, no_room
from ninfer_core.engine.endings import Endings
from ninfer_core.engine.flights import Flight
from ninfer_core.engine.pressure import Pressure
from ninfer_core.engine.reclaiming import Relief
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.scheduler import Scheduler
from ninfer_core.engine.states import CHUNKED, RUNNABLE, RequestState

_KIND_OF_STATE = {
    RequestState.PREFILL: UnitKind.PREFILL,
    RequestState.REPLAY: UnitKind.REPLAY,
    RequestState.DECODE_READY: UnitKind.DECODE,
    RequestState.CONTROL_READY: UnitKind.CONTROL,
}


@dataclass(slots=True)
class Permitted:
    """A row and its room."""

    record: RequestRecord
    permit: Permit


@dataclass(slots=True)
class PermittedUnits:
    """The rows of one cycle's units; disjoint, because a request is in one state.

    ``behind`` says that the decode rows are for a round behind the one in flight, ``again`` that
    it is the same once more, without a permit.
    """

    control: list[Permitted] = field(default_factory=list)
    decode: list[Permitted] = field(default_factory=list)
    chunk: list[Permitted] = field(default_factory=list)
    behind: bool = False
    again: bool = False

    def add(self, row: Permitted) -> None:
        kind = row.permit.need.kind
        if kind is UnitKind.CONTROL:
            self.control.append(row)
        elif kind is UnitKind.DECODE:
            self.decode.append(row)
        else:
            self.chunk.append(row)

    def __bool__(self) -> bool:
        return bool(self.control or self.decode or self.chunk)


class PermitDesk:
    """Asks for every row alone, so that a row without room stops nobody else."""

    def __init__(
        self,
        program: Program,
        scheduler: Scheduler,
        pressure: Pressure,
        endings: Endings,
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._drafts = program.limits.draft_tokens > 0
        self._program = program
        self._scheduler = scheduler
        self._pressure = pressure
        self._endings = endings
        self._held: list[Permitted] = []
        self._last_short: Shortfall | None = None
        self._hoping = False

    def collect(self, behind: Flight | None = None) -> PermittedUnits:
        """Permits for all control and decode rows and for one chunk, in permit order.

        When the decode rows come ``behind`` a round in flight, rows join only what goes on from
        there: if nothing does, they wait, so that all run in one round again. Mostly they are the
        rows of that round, all go on and have room.

        The chunk goes to the head of the rotation; one that lacked room before asks again where its
        ticket stands, so that younger rows cannot take the room away from it. When every resident
        lacks room and nobody can make way, the youngest ends with Infeasible.
        """
        units = PermittedUnits(behind=behind is not None)
        self._hoping = False
        order, now = self._scheduler.permit_order(), self._clock()
        if behind is not None and all(record.flying for record in order):
            units.again = self._again(behind, order, now)
            if not units.again and self._may_follow(behind, order):
                units.decode = self._ahead(order, now)
            return units
        follows = behind is None or self._may_follow(behind, order)
        going = [r for r in order if r.flying and _goes_on(r, now)] if follows else []
        joining = behind is None or bool(going)
        chunks = self._scheduler.chunk_order()
        late = []
        for record in order:
            if record.flying:
                units.decode += self._ahead([record], now) if record in going else []
            elif record.state not in CHUNKED:
                if joining or record.state is not RequestState.DECODE_READY:
                    self._try(record, units)
            elif record is chunks[0] or record.blocked:
                self._try_chunk(record, units)
            else:
                late.append(record)
        for record in chunks:
            if record in late:
                self._try_chunk(record, units)
        if not units and not self._hoping and self._scheduler.stalled():
            self._break_stall()
        return units

    def rehearse(self, behind: Flight) -> None:
        """Look whether the round behind ``behind`` can be the same once more, and take nothing."""
        self._again(behind, self._scheduler.permit_order(), self._clock())

    def go_on(self, flight: Flight) -> list[Permitted]:
        """The rows of ``flight``, launched now, that can run another round before the host has seen
        this one, with their room."""
        records = list(flight.records)
        return self._ahead(records, self._clock()) if self._may_follow(flight, records) else []

    def launched(self) -> None:
        """The permits have gone to the Program with their units."""
        for row in self._held:
            row.record.permitted = False
        self._held.clear()

    def give_back(self) -> None:
        """Settle what was permitted and will not be launched."""
        while self._held:
            row = self._held.pop()
            row.record.permitted = False
            if not row.permit.consumed:
                self._program.settle(row.permit)

    def _try_chunk(self, record: RequestRecord, units: PermittedUnits) -> None:
        if not units.chunk:
            self._try(record, units)

    def _try(self, record: RequestRecord, units: PermittedUnits) -> None:
        if record.state not in RUNNABLE:
            return
        permit = self._permit(record)
        if permit is not None:
            units.add(self._hold(record, permit))

    def _again(self, flight: Flight, order: list[RequestRecord], now: float) -> bool:
        """Whether the round behind ``flight`` can be the same once more, without masks."""
        return (
            tuple(order) == flight.records
            and all(_goes_on(record, now) and record.session.masks() is None for record in order)
            and self._program.has_room_again(flight.launched)
        )

    def _may_follow(self, flight: Flight, records: list[RequestRecord]) -> bool:
        """Whether the decode rows among ``records`` may run behind ``flight``."""
        if not self._drafts:
            return True
        rows = [r for r in records if r.state is RequestState.DECODE_READY]
        handles = [r.held_sequence() for r in rows]
        sessions = [r.session for r in rows]
        decided = all(s.masks() is None and s.thinking_room is None for s in sessions)
        return self._program.may_follow(flight.launched, handles, decided=decided)

    def _ahead(self, records: Iterable[RequestRecord], now: float) -> list[Permitted]:
        """For a round ahead nothing is given up and nobody is blocked."""
        rows: list[Permitted] = []
        for record in records:
            sequence = record.sequence
            if sequence is not None and _goes_on(record, now):
                permit = self._program.reserve(sequence, self._need(record))
                if isinstance(permit, Permit):
                    rows.append(self._hold(record, permit))
        return rows

    def _hold(self, record: RequestRecord, permit: Permit) -> Permitted:
        row = Permitted(record, permit)
        record.permitted = True
        self._held.append(row)
        return row

    def _permit(self, record: RequestRecord) -> Permit | None:
        sequence, need = record.held_sequence(), self._need(record)
        outcome = self._program.reserve(sequence, need)
        while isinstance(outcome, Shortfall) and self._make_room(record, outcome):
            outcome = self._program.reserve(sequence, need)
        record.blocked = isinstance(outcome, Shortfall)
        if isinstance(outcome, Permit):
            return outcome
        if isinstance(outcome, NeverFits):
            self._endings.stop(record, never_fits(outcome))
        else:
            self._last_short = outcome
        return None

    def _make_room(self, record: RequestRecord, short: Shortfall) -> bool:
        """Give something up for ``record``; False when that brought nothing, or not yet."""
        if self._pressure.relieve(record, short) is Relief.FREED:
            return True
        paused = len(self._scheduler.paused)
        if self._pressure.pause_for(record):
            self._hoping = True
        return len(self._scheduler.paused) > paused

    def _need(self, record: RequestRecord) -> UnitNeed:
        control, state = 0, record.state
        if state is RequestState.CONTROL_READY:
            control = min(len(record.forced), record.remaining)
        if self._drafts and state is RequestState.DECODE_READY:
            # What a round produced behind the place where tokens are forced would be dropped.
            room = record.session.thinking_room
            most = None if room is None else max(1, room)
            need = self._program.unit_need(record.held_sequence(), 0, most)
        else:
            need = self._program.unit_need(record.held_sequence(), control)
        if need.kind is not _KIND_OF_STATE[state]:
            raise EngineFailure(
                f"the Program wants a {need.kind.value} unit for a request in {record.state.value}"
            )
        return need

    def _break_stall(self) -> None:
        """Everybody waits for everybody. Even a protected resume makes way before anyone fails: it
        can only be short when its Program did not hold what the resume needed."""
        oldest_paused = self._scheduler.paused_before_all_residents()
        if oldest_paused is not None and self._pressure.pause_for(oldest_paused):
            return
        record = self._scheduler.youngest_blocked()
        if record is None or self._last_short is None:
            return
        alone = len(self._scheduler.residents) == 1
        if alone or not self._pressure.pause(record):
            self._endings.stop(record, no_room(self._last_short))


def _goes_on(record: RequestRecord, now: float) -> bool:
    """Whether a row in flight needs the host for nothing before its next round: no end that is
    known, no pause that waits for it, and budget left whatever the round produces. The budget is
    within the context, so that there is room for a token too. A mask needs the host only before
    the round's sampling half."""
    return (
        0 < record.flying < record.remaining
        and record.state is RequestState.DECODE_READY
        and not record.held_back
        and record.asked_to_stop(now) is None
    )
