"""How the fake Program runs, commits and rolls back its units."""

from __future__ import annotations

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.frontend import MaskProvider
from ninfer_core.contract.resources import ProgramLimits, SequenceHandle
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.contract.units import (
    ChunkRow,
    Disposition,
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

    def open(
        self, handle: SequenceHandle, permit: Permit, kind: UnitKind, masks: MaskProvider | None
    ) -> FakeRow:
        held = self._contexts.sequence(handle)
        if held.permit is not permit or permit.need.kind is not kind:
            raise EngineFailure(f"a {kind.value} unit was launched without its permit")
        permit.consume()
        held.permit, held.in_unit = None, True
        return FakeRow(handle, held, permit, masks)

    def launch(self, kind: UnitKind, rows: list[FakeRow]) -> FakeLaunched:
        launched = FakeLaunched(kind, rows, self._limits.vocab_rows, self._faults, self._outcome)
        self.in_flight.append(launched)
        return launched

    def _outcome(self, launched: FakeLaunched) -> PendingBatch | Progress:
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
        count = 1 if kind is UnitKind.PREFILL else row.permit.need.tokens
        if kind is UnitKind.DECODE:
            count = 1 + held.state % count
        tokens = row.tokens or held.draw(count, self._limits.vocab_rows)
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
        pending.consume()
        self.pending.remove(pending)
        rows = pending.detail
        assert isinstance(rows, list)
        return rows

    def settle(self, row: FakeRow, out: PendingRow, decision: RowDecision) -> None:
        held = row.sequence
        if decision.disposition is Disposition.ACCEPT:
            produced = len(out.token_ids)
            whole = decision.accepted == produced
            if not 1 <= decision.accepted <= produced or not (decision.terminal or whole):
                raise EngineFailure(f"a row accepts {decision.accepted} of {produced} tokens")
            if out.status is not RowStatus.OK:
                raise EngineFailure("a row without a legal outcome was accepted")
            taken = out.token_ids[: decision.accepted]
            self.journal.prefilled_tokens += max(0, held.prompt_length - held.frontier)
            held.run_to(max(held.frontier, held.prompt_length))
            held.accept(taken)
            held.floor_pages = 0
            ticket = held.request.publication_order
            self.journal.committed.setdefault(ticket, []).extend(taken)
        self.close(row)

    def close(self, row: FakeRow) -> None:
        row.sequence.in_unit = False
        self.trim(row.handle, row.sequence)

    def trim(self, handle: SequenceHandle, held: FakeSequence) -> None:
        keep = max(self._contexts.pages(held.frontier), held.floor_pages)
        extra = self._accounts.held(handle).pages - keep
        if extra > 0:
            self._accounts.give(handle, Amount(pages=extra))
