"""What a unit holds of one row between launch and settlement, and how it is settled."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import PAGE_TOKENS
from ninfer_core.contract.units import (
    Disposition,
    PendingBatch,
    PendingRow,
    Permit,
    RowDecision,
    RowStatus,
)
from ninfer_core.store.logical_pages import pages_for
from ninfer_core.store.reservations import Reservation
from ninfer_qwen3_5.program.reach import Reach
from ninfer_qwen3_5.program.sequence import Sequence
from ninfer_qwen3_5.program.stores import MAIN, Stores

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_qwen3_5.program.units import Units


_ACCEPTED = RowDecision(disposition=Disposition.ACCEPT, accepted=1)


@dataclass(frozen=True, slots=True)
class Verified:
    """What verified rows leave for the commit: their hidden rows [W, H] after the final norm, or
    the ``place`` where these are kept, with the state slots that a fold goes between. ``folded``
    rows were taken in by the round that is behind it already, 0 without one."""

    hidden: Tensor | None = None
    place: int = 0
    source: int = 0
    target: int = 0
    folded: int = 0


@dataclass(slots=True)
class RowWork:
    """One row in flight: ``executed`` tokens from ``start`` on, ``behind`` earlier units of its
    sequence that are not settled.

    ``grant`` is None when the pages it has suffice, as in most rounds. ``counted`` says that the
    device counted what it drew; ``fresh_chunk`` that the tokens run as a chunk for the first time,
    ``stepped`` that a replay runs them one by one. ``verified`` rows leave their state to a fold
    at the commit, which may take only the first of them. ``following`` is the next unit of its
    sequence, if one is in flight behind it; ``stale`` says that the unit before it was cut, so that
    this one ran on tokens that nobody accepted. ``proposed`` are the drafts that go on
    from all that the row produced, at most ``wanted`` of them."""

    sequence: Sequence
    grant: Reservation | None
    executed: int
    start: int
    behind: int
    counted: bool = False
    fresh_chunk: bool = False
    stepped: bool = False
    verified: Verified | None = None
    wanted: int = 0
    following: RowWork | None = None
    stale: bool = False
    proposed: tuple[int, ...] = ()

    @property
    def drafts(self) -> tuple[int, ...]:
        """What a round verifies: as many as it has a permit for."""
        return self.sequence.drafts[: self.executed - 1]

    def useful_drafts(self, produced: int) -> int:
        """How many drafts are worth making behind ``produced`` more tokens."""
        return max(0, min(self.wanted, self.sequence.remaining - produced - 1))

    @property
    def source_slot(self) -> int:
        """The state that the unit starts from."""
        return self.sequence.slot_after(self.behind).index

    @property
    def target_slot(self) -> int:
        """Where the unit leaves its state."""
        return self.sequence.slot_after(self.behind + 1).index


class Settlement:
    """Turns outcomes of units into committed sequences, or rolls them back."""

    def __init__(self, stores: Stores, units: Units, reach: Reach) -> None:
        self._stores = stores
        self._units = units
        self._reach = reach

    def open(self, sequence: Sequence, permit: Permit, *, ahead: bool = False) -> RowWork:
        """Consume a permit and map its pages. ``ahead`` allows units of the row in flight."""
        if sequence.flying > self._units.rounds_ahead * ahead:
            raise EngineFailure("a sequence was put into two units at once")
        permit.consume()
        grant = permit.detail if isinstance(permit.detail, Reservation) else None
        tokens = permit.need.tokens
        start = sequence.frontier + sequence.flying_tokens
        reach = start + tokens
        if grant is not None:
            covered = {MAIN: self._reach.covered(sequence, reach, permit.need)}
            self._stores.histories.ensure_mapped(sequence.history, covered, grant)
        return _fly(sequence, grant, tokens, start)

    def pages_lacking(self, sequence: Sequence, reach: int) -> int:
        """Pages to reserve before a unit that writes up to ``reach``."""
        if reach <= sequence.room:
            return 0
        pages = self._stores.growth(sequence.history, reach)
        if not pages:
            sequence.room = pages_for(reach) * PAGE_TOKENS
        return pages

    def has_room_again(self, work: RowWork) -> bool:
        """Whether another token has room behind ``work``, the latest of its sequence."""
        return not self.pages_lacking(work.sequence, work.start + work.executed + 1)

    def open_again(self, work: RowWork) -> RowWork:
        """Another token behind ``work``, for which there is room."""
        sequence = work.sequence
        if sequence.flying > self._units.rounds_ahead:
            raise EngineFailure("a sequence was put into two units at once")
        return _fly(sequence, None, 1, work.start + work.executed)

    def advance(self, work: RowWork) -> None:
        """Commit the executed tokens: keys and values, state, frontier."""
        sequence = work.sequence
        sequence.frontier += work.executed
        self._stores.commit(sequence.history, sequence.frontier)
        sequence.swap()
        sequence.drafts = ()
        if work.fresh_chunk:
            sequence.trail.add(work.start, sequence.frontier)
        self._close(work)

    def roll_back(self, work: RowWork) -> None:
        """Forget the unit; the sequence stands where it stood."""
        self._close(work)

    def abort(self, works: Rows[RowWork], rows: Rows[PendingRow]) -> None:
        """Roll a whole batch back. Raises EngineFailure, changing nothing, before a later one."""
        for work in works:
            # ``horizon`` does not tell: it stays where a round before this one accepted less.
            before = work.start > work.sequence.frontier
            if work.sequence.flying > 1 + before:
                raise EngineFailure("a unit was aborted before one that was launched behind it")
        for work, row in zip(works, rows, strict=True):
            self._units.dropped(work, row.token_ids)
            work.sequence.horizon = work.start
            self.roll_back(work)

    def commit(
        self, works: Rows[RowWork], rows: Rows[PendingRow], decisions: Rows[RowDecision]
    ) -> None:
        """Take every row as decided. Raises EngineFailure, changing nothing, on a bad decision."""
        if not len(works) == len(rows) == len(decisions):
            raise EngineFailure(f"{len(decisions)} decisions for a batch of {len(works)} rows")
        settled = list(zip(works, rows, decisions, strict=True))
        for work, row, decision in settled:
            _check(work, row, decision)
        verified = [(w, d.accepted) for w, _, d in settled if w.verified is not None and d.accepted]
        if verified:
            self._fold(verified)
        uncounted: list[RowWork] = []
        tokens: list[tuple[int, ...]] = []
        for work, row, decision in settled:
            produced, count = row.token_ids, decision.accepted
            # What comes of tokens that nobody accepted says nothing of the sequence.
            broken = row.status is RowStatus.NONFINITE and not work.stale
            if broken or decision.disposition is Disposition.FAILED:
                work.sequence.fail()
            if count < len(produced):
                self._units.dropped(work, produced[count:])
                work.proposed = ()
                if work.following is not None:
                    work.following.stale = True
            if count == len(produced) or (count and work.verified is not None):
                self.advance(work)
            else:
                self.roll_back(work)
            if decision.disposition is Disposition.ACCEPT:
                if work.sequence.steering is not None and not work.fresh_chunk:
                    work.sequence.steering.learn(len(works), row.drafted, len(produced) - 1)
                work.sequence.generated.extend(produced[:count])
                work.sequence.drafts = work.proposed
                if not work.counted:
                    uncounted.append(work)
                    tokens.append(produced[:count])
        if uncounted:
            self._units.accepted(uncounted, tokens)

    def rehearse(self, works: Rows[RowWork], rows: Rows[PendingRow]) -> None:
        """Settle stand-ins of ``works`` that executed nothing, and open what would come behind
        them: what is needed for that is read, and nothing changes."""
        standing = [_stand_in(work) for work in works]
        self.commit(standing, rows, [_ACCEPTED] * len(standing))
        for work in standing:
            if self.has_room_again(work):
                self.open_again(work)

    def _fold(self, kept: Rows[tuple[RowWork, int]]) -> None:
        """Let the states of verified rows take in what is accepted of them, and no more."""
        folded, accepted = zip(*kept, strict=True)
        self._units.fold(folded, accepted)
        for work, count in kept:
            surplus = work.executed - count
            work.sequence.flying_tokens -= surplus
            work.executed = count
            if work.following is not None:
                work.following.start -= surplus

    def _close(self, work: RowWork) -> None:
        """Give back what the unit did not use. Its pages are the room of a round in flight behind
        it, down to the drafts made there: so they wait for that one, with the grant."""
        sequence, behind = work.sequence, work.following
        sequence.flying -= 1
        sequence.flying_tokens -= work.executed
        if not sequence.flying:
            sequence.horizon = 0
        if work is sequence.latest:
            sequence.latest = None
        if work.grant is None:
            return
        if behind is not None and behind is sequence.latest and behind.grant is None:
            behind.grant = work.grant
            return
        sequence.room = 0
        written = 0
        if sequence.flying:
            written = self._reach.of_round(sequence.request, sequence.horizon)
        kept = {MAIN: max(sequence.reach, written)}
        self._stores.histories.settle(sequence.history, work.grant, kept)


def works_of(pending: PendingBatch) -> tuple[RowWork, ...]:
    works = pending.detail
    if not isinstance(works, tuple):
        raise EngineFailure("the batch comes from another program")
    return works


def _stand_in(work: RowWork) -> RowWork:
    """Of a row that the device has counted, with a copy of its sequence that shares what a commit
    of no tokens leaves as it is."""
    past = work.sequence
    sequence = replace(past, generated=[], steering=None, latest=None)
    return RowWork(sequence, None, 0, past.frontier, 0, counted=True)


def _fly(sequence: Sequence, grant: Reservation | None, tokens: int, start: int) -> RowWork:
    work = RowWork(sequence, grant, tokens, start, sequence.flying)
    if sequence.flying and sequence.latest is not None:
        sequence.latest.following = work
    sequence.latest = work
    sequence.flying += 1
    sequence.flying_tokens += tokens
    sequence.horizon = max(sequence.horizon, start + tokens)
    return work


def _check(work: RowWork, row: PendingRow, decision: RowDecision) -> None:
    if decision.disposition is not Disposition.ACCEPT:
        if decision.accepted:
            raise EngineFailure(f"a {decision.disposition.value} row accepts no token")
        return
    if work.start != work.sequence.frontier:
        raise EngineFailure("a row was accepted before what was launched before it")
    if work.stale:
        raise EngineFailure("a row was accepted that ran on tokens nobody accepted")
    produced = len(row.token_ids)
    if not 1 <= decision.accepted <= produced:
        raise EngineFailure(f"{decision.accepted} tokens accepted of {produced}")
    if decision.accepted < produced and not decision.terminal and work.verified is None:
        raise EngineFailure("a row that goes on accepts all it produced")
