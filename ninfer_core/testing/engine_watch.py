"""Writes down what an engine does with the units of the fake Program, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer_core.contract.units import (
    Launched,
    PendingBatch,
    Progress,
    RowDecision,
    UnitKind,
)
from ninfer_core.testing.fake_program import FakeProgram
from ninfer_core.testing.fake_units import FakeLaunched, FakeRow


@dataclass(frozen=True, slots=True)
class Seen:
    """``what`` is a launch (``decode``, ``decode ahead``, ``prefill``, ...), ``collect``,
    ``commit`` or ``abort``; ``unit`` counts units in launch order from 0; ``rows`` are tickets, or
    what was decided of each in a commit."""

    what: str
    unit: int
    rows: tuple[object, ...] = ()


class UnitWatch:
    """Attached to a Program; a unit in flight already gets the first numbers."""

    def __init__(self, program: FakeProgram) -> None:
        self.seen: list[Seen] = []
        self._units: list[FakeLaunched] = list(program._execution.in_flight)
        self._attach(program)

    @property
    def launches(self) -> list[Seen]:
        done = ("collect", "commit", "abort")
        return [entry for entry in self.seen if entry.what not in done]

    @property
    def decode_rows(self) -> list[tuple[object, ...]]:
        """The tickets of each decode round."""
        return [entry.rows for entry in self.launches if entry.what.startswith("decode")]

    @property
    def decided(self) -> list[tuple[object, ...]]:
        """The dispositions of each commit."""
        return [entry.rows for entry in self.seen if entry.what == "commit"]

    @property
    def order(self) -> list[tuple[str, int]]:
        return [(entry.what, entry.unit) for entry in self.seen]

    def _attach(self, program: FakeProgram) -> None:
        execution = program._execution
        launch, outcome = execution.launch, execution._outcome
        decode, commit, abort = program.launch_decode, program.commit, program.abort
        behind: list[Launched | None] = [None]

        def spied_decode(rows: Sequence[object], *, ahead_of: Launched | None = None) -> Launched:
            behind[0] = ahead_of
            return decode(rows, ahead_of=ahead_of)  # type: ignore[arg-type]

        def spied_launch(kind: UnitKind, rows: list[FakeRow]) -> FakeLaunched:
            ahead, behind[0] = behind[0], None
            tickets = tuple(row.sequence.request.publication_order for row in rows)
            what = kind.value if ahead is None else f"{kind.value} ahead"
            self.seen.append(Seen(what, len(self._units), tickets))
            unit = launch(kind, rows)
            self._units.append(unit)
            return unit

        def spied_outcome(unit: FakeLaunched) -> PendingBatch | Progress:
            self.seen.append(Seen("collect", self._units.index(unit)))
            return outcome(unit)

        def spied_commit(pending: PendingBatch, decisions: Sequence[RowDecision]) -> None:
            said = tuple(one.disposition.value for one in decisions)
            self.seen.append(Seen("commit", self._number(pending), said))
            commit(pending, decisions)

        def spied_abort(pending: PendingBatch) -> None:
            self.seen.append(Seen("abort", self._number(pending)))
            abort(pending)

        for owner, name, spy in (
            (execution, "launch", spied_launch),
            (execution, "_outcome", spied_outcome),
            (program, "launch_decode", spied_decode),
            (program, "commit", spied_commit),
            (program, "abort", spied_abort),
        ):
            setattr(owner, name, spy)
        for unit in self._units:
            unit._outcome = spied_outcome

    def _number(self, pending: PendingBatch) -> int:
        return next(n for n, unit in enumerate(self._units) if unit.rows is pending.detail)
