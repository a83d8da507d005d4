"""The Program of Qwen3.5: the contract's entry points, each a few lines over the parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import replace
from typing import TYPE_CHECKING

from ninfer_core.contract.checkpoints import (
    BindRequest,
    Captured,
    Plan,
    PlanKind,
    Released,
    ResumeKind,
    ResumeState,
    SequencePhase,
    Transaction,
)
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.frontend import MaskProvider
from ninfer_core.contract.resources import (
    PAGE_TOKENS,
    CapacitySummary,
    CheckpointRef,
    NeverFits,
    ProgramLimits,
    ResourceVector,
    SequenceHandle,
    Shortfall,
)
from ninfer_core.contract.units import (
    ChunkRow,
    ControlRow,
    DecodeRow,
    Launched,
    PendingBatch,
    Permit,
    RowDecision,
    UnitKind,
    UnitNeed,
)
from ninfer_core.store.demand import Demand
from ninfer_core.store.reservations import Reservation
from ninfer_qwen3_5.program.checkpoint_records import CaptureOf
from ninfer_qwen3_5.program.context import Contexts
from ninfer_qwen3_5.program.host_tier import HostTier
from ninfer_qwen3_5.program.kept_contexts import KeptContexts
from ninfer_qwen3_5.program.reach import Reach
from ninfer_qwen3_5.program.sampler import MAX_BANNED, MAX_BIASED
from ninfer_qwen3_5.program.sequence import Sequence
from ninfer_qwen3_5.program.stores import MAIN, STATE, Stores, vector
from ninfer_qwen3_5.program.units import UnitRow, Units
from ninfer_qwen3_5.program.work import Settlement, works_of

if TYPE_CHECKING:
    from ninfer_qwen3_5.model.state import ModelState

_NO_GROWTH = ResourceVector()
_ONE_TOKEN = UnitNeed(UnitKind.DECODE, 1, False)


class TextProgram(KeptContexts):
    """Units and resources of one text model (contract: ``Program``).

    ``keeps``: prompts are split at their restore points, and checkpoints can be made."""

    def __init__(
        self,
        limits: ProgramLimits,
        stores: Stores,
        state: ModelState,
        units: Units,
        device_bytes: Mapping[str, int],
        keeps: bool = False,
        host: HostTier | None = None,
    ) -> None:
        self._limits = limits
        self._stores = stores
        self._units = units
        self._device_bytes = dict(device_bytes)
        self._reach = Reach(limits.max_context, limits.draft_tokens)
        contexts = Contexts(stores, state, units, limits, self._reach, keeps, host)
        super().__init__(contexts, stores, host)
        self._settlement = Settlement(stores, units, self._reach)
        if host is not None:
            stores.spare = host.trim

    @property
    def limits(self) -> ProgramLimits:
        return self._limits

    def limit_chunk(self, tokens: int) -> None:
        self._limits = replace(self._limits, prefill_chunk=tokens)
        self._contexts.limit_chunk(tokens)

    def capacity(self) -> CapacitySummary:
        return self._stores.capacity(len(self._contexts.sequences), self._device_bytes)

    def check(self) -> None:
        """Raise StoreInvariantError if any ledger contradicts itself."""
        self._stores.context.check()
        self._contexts.check()

    def plan_capture(self, sequence: SequenceHandle) -> Plan | Shortfall | NeverFits:
        """NeverFits for a sequence of which no checkpoint may be made."""
        if not self._contexts.may_keep(self._idle(sequence)):
            return NeverFits("checkpoints", 1, 0)
        demand = Demand({STATE: 1})
        refusal = self._stores.refusal(demand)
        return refusal or Plan(PlanKind.CAPTURE, vector(demand), CaptureOf(sequence))

    def revoke(self, resume: ResumeState) -> ResumeState:
        return self._contexts.revoke(resume)

    def discard(self, resume: ResumeState) -> None:
        self._contexts.discard(resume)

    def plan_bind(self, request: BindRequest) -> Plan | Shortfall | NeverFits:
        biased = len(request.sampling.logit_bias)
        if biased > MAX_BIASED:
            return NeverFits("logit_bias entries", biased, MAX_BIASED)
        banned = len(request.rules.suppressed_until_min)
        if banned > MAX_BANNED:
            return NeverFits("stop ids under min_tokens", banned, MAX_BANNED)
        pages = self._stores.context.ledger.pool(MAIN).capacity
        tokens = request.prepared.length + request.rules.max_new_tokens
        needed = -(-min(tokens, self._limits.max_context) // PAGE_TOKENS)
        if needed > pages:
            return NeverFits(MAIN, needed, pages)
        if isinstance(request.source, CheckpointRef):
            self._require_source(request, request.source)
            if request.consume and not self._checkpoints.may_consume(request.source):
                return NeverFits("sole holders of the checkpoint", 1, 0)
        demand = self._contexts.bind_demand(request)
        refusal = self._stores.refusal(demand)
        return refusal or Plan(PlanKind.BIND, vector(demand), request)

    def plan_pause(
        self, sequence: SequenceHandle, kind: ResumeKind
    ) -> Plan | Shortfall | NeverFits:
        self._idle(sequence)
        if kind is ResumeKind.SNAPSHOT:
            return self._contexts.plan_snapshot(sequence)
        return Plan(PlanKind.PAUSE, ResourceVector(), sequence)

    def begin(self, plan: Plan) -> Transaction:
        return self._contexts.begin(plan)

    def unit_need(
        self, sequence: SequenceHandle, control: int = 0, room: int | None = None
    ) -> UnitNeed:
        record = self._contexts.sequences.get(sequence)
        phase = record.phase
        if phase is SequencePhase.DECODE:
            # Forced tokens run as a chunk does, and what one cannot hold is left for the next.
            forced = min(control, self._limits.prefill_chunk)
            if control:
                return UnitNeed(UnitKind.CONTROL, forced, False)
            most = 1 + record.drafts_to_verify
            tokens = most if room is None else min(most, room)
            return UnitNeed(UnitKind.DECODE, tokens, False) if tokens > 1 else _ONE_TOKEN
        stop = record.chunk_end(self._limits.prefill_chunk)
        if phase is SequencePhase.REPLAY:
            return UnitNeed(UnitKind.REPLAY, stop - record.frontier, stop == record.replay_to)
        return UnitNeed(UnitKind.PREFILL, stop - record.frontier, stop == record.prompt_length)

    def reserve(self, sequence: SequenceHandle, need: UnitNeed) -> Permit | Shortfall | NeverFits:
        record = self._contexts.sequences.get(sequence)
        reach = record.frontier + record.flying_tokens + need.tokens
        reach = self._reach.covered(record, reach, need)
        pages = self._settlement.pages_lacking(record, reach)
        if not pages:
            return Permit(sequence, need, _NO_GROWTH, None)
        demand = Demand({MAIN: pages})
        grant = self._stores.reserve(demand)
        if not isinstance(grant, Reservation):
            return grant
        return Permit(sequence, need, vector(demand), grant)

    def settle(self, permit: Permit) -> None:
        permit.consume()
        if isinstance(permit.detail, Reservation):
            permit.detail.settle()

    def launch_prefill(self, row: ChunkRow) -> Launched:
        opened = self._open(row, UnitKind.PREFILL, row.masks)
        opened.work.fresh_chunk = True
        rules = opened.work.sequence.request.rules
        draws = row.permit.need.last and rules.max_new_tokens > 0
        return self._units.prefill(opened, draws=draws, advance=self._settlement.advance)

    def launch_replay(self, row: ChunkRow) -> Launched:
        opened = self._open(row, UnitKind.REPLAY)
        opened.work.stepped = opened.work.sequence.trail.stepped(opened.work.start)
        return self._units.replay(opened, advance=self._settlement.advance)

    def launch_decode(self, rows: Rows[DecodeRow], *, ahead_of: Launched | None = None) -> Launched:
        ahead = ahead_of is not None
        if ahead and not self._units.rounds_ahead:
            raise EngineFailure("this device computes when asked and launches nothing ahead")
        opened = [self._open(row, UnitKind.DECODE, row.masks, ahead=ahead) for row in rows]
        return self._units.decode(opened, ahead=ahead)

    def has_room_again(self, launched: Launched) -> bool:
        rows = self._units.rows_ahead(launched)
        return bool(rows) and all(self._settlement.has_room_again(row.work) for row in rows)

    def may_follow(
        self, launched: Launched, sequences: Rows[SequenceHandle], *, decided: bool
    ) -> bool:
        held = [self._contexts.sequences.get(handle) for handle in sequences]
        return self._units.may_follow(launched, held, decided=decided)

    def launch_again(self, launched: Launched) -> Launched:
        again = self._settlement.open_again
        rows = [UnitRow(row.handle, again(row.work)) for row in self._units.rows_ahead(launched)]
        return self._units.decode(rows, ahead=True)

    def launch_control(self, rows: Rows[ControlRow]) -> Launched:
        for row in rows:
            if len(row.token_ids) != row.permit.need.tokens:
                raise EngineFailure("a control row forces another number of tokens than permitted")
        opened = [self._open(row, UnitKind.CONTROL) for row in rows]
        for unit in opened:
            unit.work.fresh_chunk = True
        return self._units.control(opened, [row.token_ids for row in rows])

    def before_results(self, rehearse: Callable[[], object]) -> None:
        def rehearse_all(pending: PendingBatch) -> None:
            self._settlement.rehearse(works_of(pending), pending.rows)
            rehearse()

        self._units.before_results(rehearse_all)

    def commit(self, pending: PendingBatch, decisions: Rows[RowDecision]) -> None:
        pending.consume()
        self._settlement.commit(works_of(pending), pending.rows, decisions)

    def abort(self, pending: PendingBatch) -> None:
        pending.consume()
        self._settlement.abort(works_of(pending), pending.rows)

    def finish(self, sequence: SequenceHandle, *, keep: bool) -> Captured | Released:
        """Release the sequence, or keep its end where that is sound and allowed."""
        if keep and self._contexts.may_keep(self._contexts.sequences.get(sequence)):
            return self._contexts.keep(sequence)
        return Released(vector(self._contexts.remove(sequence)))

    def close(self) -> None:
        self._units.close()
        self._contexts.close()

    def _require_source(self, request: BindRequest, source: CheckpointRef) -> None:
        if request.rules.prompt_logprobs is not None:
            raise EngineFailure("a prompt whose tokens are scored begins at the root")
        self._checkpoints.require_source(source, request.prepared)

    def _idle(self, handle: SequenceHandle) -> Sequence:
        record = self._contexts.sequences.get(handle)
        if record.busy:
            raise EngineFailure("a sequence was moved while a unit held it")
        return record

    def _open(
        self,
        row: ChunkRow | DecodeRow | ControlRow,
        kind: UnitKind,
        masks: MaskProvider | None = None,
        *,
        ahead: bool = False,
    ) -> UnitRow:
        handle, permit = row.sequence, row.permit
        record = self._contexts.sequences.get(handle)
        same = permit.sequence is handle or permit.sequence == handle
        if not same or permit.need.kind is not kind:
            raise EngineFailure(f"a {kind.value} unit was launched with another permit")
        return UnitRow(handle, self._settlement.open(record, permit, ahead=ahead), masks)
