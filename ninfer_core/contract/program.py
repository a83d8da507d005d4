"""The physical side of one model instance.

Everything here is called by the engine worker only. A method that would break an invariant raises
EngineFailure; resource refusals are values, never exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ninfer_core.contract.checkpoints import (
    BindRequest,
    Captured,
    CheckpointAction,
    CheckpointFacts,
    Plan,
    Released,
    RestoreWork,
    ResumeKind,
    ResumeState,
    Transaction,
)
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.resources import (
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
    UnitNeed,
)

PlanOutcome = Plan | Shortfall | NeverFits


class Program(Protocol):
    """Sequences, stores, graphs and model state of one instance."""

    @property
    def limits(self) -> ProgramLimits: ...

    def capacity(self) -> CapacitySummary: ...

    def facts(self, ref: CheckpointRef) -> CheckpointFacts: ...

    def actions(self, ref: CheckpointRef) -> Mapping[CheckpointAction, ResourceVector]:
        """What each action would really free, given the references that survive it."""
        ...

    def restore_work(self, ref: CheckpointRef, prepared: PreparedPrompt) -> RestoreWork | None:
        """Cost of adopting ``ref`` for ``prepared``; None when identities differ."""
        ...

    def drop(self, ref: CheckpointRef, action: CheckpointAction) -> ResourceVector: ...

    def revoke(self, resume: ResumeState) -> ResumeState:
        """Turn a Snapshot into a Replay of the same sequence and free what it held."""
        ...

    def discard(self, resume: ResumeState) -> None:
        """Release a paused sequence for good."""
        ...

    def plan_bind(self, request: BindRequest) -> PlanOutcome:
        """Make a sequence resident. A plan from a ResumeState covers the old frontier and the first
        new unit in all pools; that room stays with the sequence until the unit commits, and its
        ``reserve`` calls draw on it."""
        ...

    def plan_capture(self, sequence: SequenceHandle) -> PlanOutcome: ...

    def plan_demote(self, ref: CheckpointRef) -> PlanOutcome: ...

    def plan_pause(self, sequence: SequenceHandle, kind: ResumeKind) -> PlanOutcome:
        """NeverFits when this Program cannot pause in that way at all."""
        ...

    def begin(self, plan: Plan) -> Transaction: ...

    def unit_need(self, sequence: SequenceHandle, control: int = 0) -> UnitNeed:
        """The next unit; ``control`` is the number of forced tokens waiting, 0 for none."""
        ...

    def reserve(self, sequence: SequenceHandle, need: UnitNeed) -> Permit | Shortfall | NeverFits:
        """Room for ``need`` in all pools, or the first axis that lacks it, with nothing held."""
        ...

    def settle(self, permit: Permit) -> None:
        """Give back a permit that was not launched. A launched permit settles with its unit."""
        ...

    def launch_prefill(self, row: ChunkRow) -> Launched: ...

    def launch_replay(self, row: ChunkRow) -> Launched: ...

    def launch_decode(
        self, rows: Sequence[DecodeRow], *, ahead_of: Launched | None = None
    ) -> Launched:
        """All permitted rows, exact B. ``ahead_of`` enqueues behind a round not yet collected."""
        ...

    def launch_control(self, rows: Sequence[ControlRow]) -> Launched: ...

    def commit(self, pending: PendingBatch, decisions: Sequence[RowDecision]) -> None:
        """Take the whole batch: KV, state, counts, RNG position and provenance together.

        Cancelled, failed and void rows stay at their frontier and are released by ``finish``.
        """
        ...

    def abort(self, pending: PendingBatch) -> None:
        """Roll the whole batch back to the frontiers before it."""
        ...

    def finish(self, sequence: SequenceHandle, *, keep: bool) -> Captured | Released:
        """End a resident sequence at a stable boundary; ``keep`` publishes its end if it can."""
        ...

    def close(self) -> None:
        """Drain device work and release everything. Idempotent."""
        ...


class ScoringProgram(Protocol):
    """Offline text scoring: no scheduler, no lanes, no cache; staging exists only here."""

    def score(self, token_ids: Sequence[int], first_target: int) -> list[float]:
        """log p of ``token_ids[i]`` given all before it, for every ``i >= first_target >= 1``."""
        ...

    def close(self) -> None: ...
