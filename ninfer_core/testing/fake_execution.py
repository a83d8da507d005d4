"""How the fake Program runs, commits and rolls back its units, and in which order it lets that be.

What a round will produce is fixed where it is launched, as on a device: a round launched ahead goes
on from the provisional tokens of the one before, whatever becomes of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.frontend import MaskProvider
from ninfer_core.contract.resources import ProgramLimits, ResourceVector, SequenceHandle
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.contract.units import (
    ChunkRow,
    DecodeRow,
    Disposition,
    Launched,
    PendingBatch,
    PendingRow,
    Permit,
    Progress,
    RowDecision,
    RowStatus,
    UnitKind,
)
from ninfer_core.testing.fake_accounts import Amount, FakeAccounts
from ninfer_core.testing.fake_contexts import FakeContexts
from ninfer_core.testing.fake_faults import FaultPlan
from ninfer_core.testing.fake_law import execute
from ninfer_core.testing.fake_sequences import FakeJournal, FakeSequence
from ninfer_core.testing.fake_units import FakeLaunched, FakeRow


class FakeExecution:
    """Units in flight and pending batches over the sequences of ``contexts``."""

    def __init__(
        self,
        limits: ProgramLimits,
        contexts: FakeContexts,
        accounts: FakeAccounts,
        faults: FaultPlan,
    ) -> None:
        self.journal = FakeJournal()
        self.nonfinite: set[int] = set()
        self.in_flight: list[FakeLaunched] = []
        self.pending: list[PendingBatch] = []
        self._limits = limits
        self._contexts = contexts
        self._accounts = accounts
        self._faults = faults

    def chunk(self, row: ChunkRow, kind: UnitKind) -> FakeLaunched:
        opened = self.open(row.sequence, row.permit, kind, row.masks)
        self.journal.chunk_tickets.append(opened.sequence.request.publication_order)
        return self.launch(kind, [opened])

    def decode(self, rows: Sequence[DecodeRow], ahead_of: Launched | None) -> FakeLaunched:
        before = self._round_before(ahead_of)
        opened = [self.open(r.sequence, r.permit, UnitKind.DECODE, r.masks) for r in rows]
        for row in opened:
            row.before = before.get(row.handle)
            self._run(row)
        self.journal.decode_rows.append(len(opened))
        self.journal.rounds_ahead += ahead_of is not None
        return self.launch(UnitKind.DECODE, opened)

    def has_room_again(self, launched: Launched) -> bool:
        rows = self._round_rows(launched)
        return all(
            row.permit.need.tokens == self._most(row)
            and self._contexts.pages(row.sequence.reach + row.permit.need.tokens)
            <= self._contexts.held_pages(row.handle)
            for row in rows
        )

    def decode_again(self, launched: Launched) -> FakeLaunched:
        """The rows of ``launched`` once more, with permits of their own making."""
        if not self.has_room_again(launched):
            raise EngineFailure("a round was launched again that has no room")
        rows = []
        for row in self._round_rows(launched):
            if row.sequence.permit is not None:
                raise EngineFailure("a round was launched again beside a permit of one of its rows")
            self.require_ahead(row.handle)
            row.sequence.permit = Permit(row.handle, row.permit.need, ResourceVector(), None)
            rows.append(DecodeRow(sequence=row.handle, permit=row.sequence.permit))
        self.journal.rounds_again += 1
        return self.decode(rows, launched)

    def _round_rows(self, launched: Launched) -> list[FakeRow]:
        assert isinstance(launched, FakeLaunched)
        return launched.rows

    def _most(self, row: FakeRow) -> int:
        """Tokens that the round behind the one in flight may produce."""
        return min(self._contexts.config.burst, self._limits.max_context - row.sequence.reach)

    def require_ahead(self, handle: SequenceHandle) -> None:
        """Raises EngineFailure unless ``handle``, which is in a unit, may have a permit for the
        round after it."""
        units = [unit for unit in self.in_flight if any(r.handle == handle for r in unit.rows)]
        decodes = [unit for unit in units if unit.kind is UnitKind.DECODE]
        if not 1 <= len(decodes) <= self._limits.rounds_ahead or len(units) > len(decodes):
            raise EngineFailure("a sequence asked for a permit that it may not have now")

    def open(
        self, handle: SequenceHandle, permit: Permit, kind: UnitKind, masks: MaskProvider | None
    ) -> FakeRow:
        held = self._contexts.sequence(handle)
        if held.permit is not permit or permit.need.kind is not kind:
            raise EngineFailure(f"a {kind.value} unit was launched without its permit")
        if held.cut and kind is not UnitKind.CONTROL:
            raise EngineFailure("tokens were to be forced in place of others and were not")
        held.cut = False
        permit.consume()
        held.permit = None
        held.extents.append(permit.need.tokens)
        row = FakeRow(handle, held, permit, masks)
        self._require_pages(row)
        return row

    def _round_before(self, ahead_of: Launched | None) -> dict[SequenceHandle, FakeRow]:
        """The rows of the round that another is launched behind."""
        rounds = [unit for unit in self.in_flight if unit.kind is UnitKind.DECODE]
        if (rounds[-1] if rounds else None) is not ahead_of:
            raise EngineFailure("a decode round does not name the one that it runs behind")
        if len(rounds) > self._limits.rounds_ahead:
            raise EngineFailure("a decode round was launched too far ahead")
        if not all(unit.finished for unit in rounds):
            raise EngineFailure("a decode round was launched behind an unfinished one")
        return {row.handle: row for unit in rounds for row in unit.rows}

    def _require_pages(self, row: FakeRow) -> None:
        if self._contexts.held_pages(row.handle) < self._contexts.pages(row.sequence.reach):
            raise EngineFailure("a unit runs past the pages of its sequence")

    def _run(self, row: FakeRow) -> None:
        """Fix the tokens of a decode row: at most as many as permitted, one at least."""
        held, before = row.sequence, row.before
        taken = () if before is None else before.tokens
        row.start = len(held.ledger) + len(taken)
        executed = [*held.ledger[held.frontier :], *taken][:-1]
        count = 1 + execute(held.state, executed) % row.permit.need.tokens
        row.tokens = held.draw(count, self._limits.vocab_rows, taken)

    def launch(self, kind: UnitKind, rows: list[FakeRow]) -> FakeLaunched:
        launched = FakeLaunched(kind, rows, self._limits.vocab_rows, self._faults, self._outcome)
        self.in_flight.append(launched)
        return launched

    def _outcome(self, launched: FakeLaunched) -> PendingBatch | Progress:
        if self.in_flight[0] is not launched:
            raise EngineFailure("a unit was collected before an earlier one")
        for row in launched.rows:
            self._require_pages(row)
        self.in_flight.remove(launched)
        first = launched.rows[0]
        chunked = launched.kind in (UnitKind.PREFILL, UnitKind.REPLAY)
        wants_token = launched.kind is UnitKind.PREFILL and first.permit.need.last
        if chunked and not (wants_token and first.sequence.request.rules.max_new_tokens > 0):
            return self._progress(launched.kind, first)
        rows = tuple(self._produce(launched.kind, row) for row in launched.rows)
        pending = PendingBatch(launched.kind, rows, device_seconds=0.001, detail=launched.rows)
        self.pending.append(pending)
        return pending

    def _progress(self, kind: UnitKind, row: FakeRow) -> Progress:
        held, tokens = row.sequence, row.permit.need.tokens
        status = self._status(row)
        scored = self._scored(row) if kind is UnitKind.PREFILL else ()
        if status is RowStatus.OK:
            held.run_to(held.frontier + tokens)
            if kind is UnitKind.PREFILL:
                held.floor_pages = 0
                self.journal.prefilled_tokens += tokens
            else:
                self.journal.replayed_tokens += tokens
        self.close(row)
        return Progress(sequence=row.handle, frontier=held.frontier, scored=scored, status=status)

    def _produce(self, kind: UnitKind, row: FakeRow) -> PendingRow:
        held, status = row.sequence, self._status(row)
        tokens = row.tokens or held.draw(1, self._limits.vocab_rows)
        asked = held.request.rules.logprobs is not None
        return PendingRow(
            sequence=row.handle,
            frontier=held.frontier,
            token_ids=tokens,
            status=status,
            logprobs=tuple(TokenLogprobs(t, -t / 8) for t in tokens) if asked else (),
            scored=self._scored(row) if kind is UnitKind.PREFILL else (),
            drafted=self._contexts.config.burst - 1 if kind is UnitKind.DECODE else 0,
        )

    def _scored(self, row: FakeRow) -> tuple[TokenLogprobs, ...]:
        held = row.sequence
        if held.request.rules.prompt_logprobs is None:
            return ()
        end = min(held.frontier + row.permit.need.tokens, held.prompt_length - 1)
        positions = range(held.frontier + 1, end + 1)
        return tuple(TokenLogprobs(held.ledger[p], -p / 8) for p in positions)

    def _status(self, row: FakeRow) -> RowStatus:
        ticket = row.sequence.request.publication_order
        if ticket in self.nonfinite:
            self.nonfinite.remove(ticket)
            return RowStatus.NONFINITE
        return row.status

    def take(self, pending: PendingBatch) -> list[FakeRow]:
        """The rows of a batch that is committed, in launch order."""
        if self.pending[:1] != [pending]:
            raise EngineFailure("a batch was committed before an earlier one")
        return self._consume(pending)

    def take_back(self, pending: PendingBatch) -> list[FakeRow]:
        """The rows of a batch that is aborted, in reverse launch order."""
        if self.pending[-1:] != [pending]:
            raise EngineFailure("a batch was aborted before a later one")
        rows = self._consume(pending)
        later = {row.handle for unit in self.in_flight for row in unit.rows}
        if any(row.handle in later for row in rows):
            raise EngineFailure("a round was aborted under one that was launched behind it")
        return rows

    def _consume(self, pending: PendingBatch) -> list[FakeRow]:
        pending.consume()
        self.pending.remove(pending)
        rows = pending.detail
        assert isinstance(rows, list)
        for row in rows:
            row.settled = True
        return rows

    def settle(self, row: FakeRow, out: PendingRow, decision: RowDecision) -> None:
        held = row.sequence
        if decision.disposition is Disposition.ACCEPT:
            produced = len(out.token_ids)
            whole = decision.accepted == produced
            part = decision.terminal or row.permit.need.kind is UnitKind.DECODE
            if not 1 <= decision.accepted <= produced or not (part or whole):
                raise EngineFailure(f"a row accepts {decision.accepted} of {produced} tokens")
            if out.status is not RowStatus.OK:
                raise EngineFailure("a row without a legal outcome was accepted")
            if held.over:
                raise EngineFailure("a row was accepted after its end")
            if row.start not in (0, len(held.ledger)):
                raise EngineFailure("a row was accepted that ran on tokens nobody accepted")
            held.over, held.cut = decision.terminal, not (decision.terminal or whole)
            taken = out.token_ids[: decision.accepted]
            self.journal.prefilled_tokens += max(0, held.prompt_length - held.frontier)
            held.run_to(max(held.frontier, held.prompt_length))
            held.accept(taken)
            held.floor_pages = 0
            ticket = held.request.publication_order
            self.journal.committed.setdefault(ticket, []).extend(taken)
        elif decision.disposition is Disposition.VOID:
            self.journal.void_rows += 1
            if row.before is None:
                raise EngineFailure("a row is void that went on from no other round")
        self.close(row)

    def close(self, row: FakeRow) -> None:
        row.sequence.extents.remove(row.permit.need.tokens)
        self.trim(row.handle, row.sequence)

    def trim(self, handle: SequenceHandle, held: FakeSequence) -> None:
        reach = held.reach + (held.permit.need.tokens if held.permit is not None else 0)
        keep = max(self._contexts.pages(reach), held.floor_pages)
        own = self._accounts.held(handle).pages
        extra = min(self._contexts.held_pages(handle) - keep, own)
        if extra > 0:
            self._accounts.give(handle, Amount(pages=extra))
