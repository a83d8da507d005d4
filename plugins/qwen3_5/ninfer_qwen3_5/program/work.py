"""What a unit holds of one row between launch and settlement, and how it is settled."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.units import Disposition, PendingRow, Permit, RowDecision
from ninfer_core.store.reservations import Reservation
from ninfer_qwen3_5.program.sampler import Sampler
from ninfer_qwen3_5.program.sequence import Sequence
from ninfer_qwen3_5.program.stores import MAIN, Stores


@dataclass(slots=True)
class RowWork:
    """One row in flight: ``executed`` tokens past the frontier, their state in the spare slot.

    ``grant`` is None when the pages it has suffice, as in most rounds."""

    sequence: Sequence
    grant: Reservation | None
    executed: int


class Settlement:
    """Turns outcomes of units into committed sequences, or rolls them back."""

    def __init__(self, stores: Stores, sampler: Sampler) -> None:
        self._stores = stores
        self._sampler = sampler

    def open(self, sequence: Sequence, permit: Permit) -> RowWork:
        """Consume a permit and map its pages."""
        if sequence.busy:
            raise EngineFailure("a sequence was put into two units at once")
        permit.consume()
        grant = permit.detail if isinstance(permit.detail, Reservation) else None
        if grant is not None:
            reach = sequence.frontier + permit.need.tokens
            self._stores.histories.ensure_mapped(sequence.history, {MAIN: reach}, grant)
        sequence.busy = True
        return RowWork(sequence, grant, permit.need.tokens)

    def advance(self, work: RowWork) -> None:
        """Commit the executed tokens: keys and values, state, frontier."""
        sequence = work.sequence
        sequence.frontier += work.executed
        self._stores.histories.commit(sequence.history, {MAIN: sequence.frontier})
        sequence.swap()
        self._close(work)

    def roll_back(self, work: RowWork) -> None:
        """Forget the unit; the sequence stands where it stood."""
        self._close(work)

    def commit(
        self, works: Rows[RowWork], rows: Rows[PendingRow], decisions: Rows[RowDecision]
    ) -> None:
        """Take every row as decided. Raises EngineFailure, changing nothing, on a bad decision."""
        if not len(works) == len(rows) == len(decisions):
            raise EngineFailure(f"{len(decisions)} decisions for a batch of {len(works)} rows")
        for row, decision in zip(rows, decisions, strict=True):
            _check(row, decision)
        taken = [
            (work, row.token_ids[: decision.accepted])
            for work, row, decision in zip(works, rows, decisions, strict=True)
            if decision.disposition is Disposition.ACCEPT
        ]
        for work, row, decision in zip(works, rows, decisions, strict=True):
            whole = decision.accepted == len(row.token_ids)
            self._settle(work, whole and decision.disposition is Disposition.ACCEPT)
        for work, tokens in taken:
            work.sequence.generated.extend(tokens)
        if taken:
            self._sampler.count([work.sequence for work, _ in taken], [t for _, t in taken])

    def _settle(self, work: RowWork, whole: bool) -> None:
        if whole:
            self.advance(work)
        else:
            self.roll_back(work)

    def _close(self, work: RowWork) -> None:
        if work.grant is not None:
            kept = {MAIN: work.sequence.reach}
            self._stores.histories.settle(work.sequence.history, work.grant, kept)
        work.sequence.busy = False


def _check(row: PendingRow, decision: RowDecision) -> None:
    if decision.disposition is not Disposition.ACCEPT:
        if decision.accepted:
            raise EngineFailure(f"a {decision.disposition.value} row accepts no token")
        return
    produced = len(row.token_ids)
    if not 1 <= decision.accepted <= produced:
        raise EngineFailure(f"{decision.accepted} tokens accepted of {produced}")
    if decision.accepted < produced and not decision.terminal:
        raise EngineFailure("a row that goes on accepts all it produced")
