"""The physical side of one model instance.

Everything here is called by the engine worker only. A method that would break an invariant raises
EngineFailure; resource refusals are values, never exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

    def limit_chunk(self, tokens: int) -> None:
        """Fix the most tokens of a chunk at no more than it was built for; ``limits`` says so from
        then on. While no sequence is paused and none is in a unit."""
        ...

    def capacity(self) -> CapacitySummary: ...

    def facts(self, ref: CheckpointRef) -> CheckpointFacts:
        """This and all that asks for kept contexts, begins with one or gives one up raises
        CacheFault, with nothing changed that runs, where the records of it contradict themselves.
        """
        ...

    def actions(self, ref: CheckpointRef) -> Mapping[CheckpointAction, ResourceVector]:
        """What each action would really free, given the references that survive it."""
        ...

    def restore_work(self, ref: CheckpointRef, prepared: PreparedPrompt) -> RestoreWork | None:
        """Cost of adopting ``ref`` for ``prepared``; None when identities differ."""
        ...

    def joint(self, axis: str) -> Sequence[frozenset[CheckpointRef]]:
        """Groups of at least two checkpoints, none of which a transaction moves, that hold some of
        ``axis`` with nobody else: deleting all of a group frees some, deleting one of it may not.
        Each group once; those in which one alone would do may be among them."""
        ...

    def drop(self, ref: CheckpointRef, action: CheckpointAction) -> ResourceVector: ...

    def forget(self) -> Sequence[CheckpointRef]:
        """Delete every checkpoint, whatever is wrong with the records of it, but those that an open
        transaction moves; these are returned. Behind a CacheFault, at any time.

        Raises EngineFailure if what runs or is paused cannot be trusted behind that.
        """
        ...

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

    def plan_capture(self, sequence: SequenceHandle) -> PlanOutcome:
        """Keep the committed frontier of a resident sequence, in no unit and with no permit, as a
        checkpoint. The sequence stays as it is; until the transaction has ended the engine puts it
        into no unit, and asks nothing of it but ``Transaction.cancel``. NeverFits when this Program
        cannot capture it here at all."""
        ...

    def plan_demote(self, ref: CheckpointRef) -> PlanOutcome: ...

    def plan_pause(self, sequence: SequenceHandle, kind: ResumeKind) -> PlanOutcome:
        """NeverFits when this Program cannot pause in that way at all."""
        ...

    def begin(self, plan: Plan) -> Transaction: ...

    def unit_need(
        self, sequence: SequenceHandle, control: int = 0, room: int | None = None
    ) -> UnitNeed:
        """The next unit; ``control`` is the number of forced tokens waiting, 0 for none. ``room``,
        at least 1, is the most tokens that a decode round may produce; None leaves it to the
        Program.

        With ``limits.rounds_ahead`` and the sequence in a decode round that is not collected: the
        need of the round after that one, with the most tokens it may produce if the one in flight
        produces all that its permit allows. Asked only if the output budget, and therefore the
        context, has room for at least one token then.
        """
        ...

    def reserve(self, sequence: SequenceHandle, need: UnitNeed) -> Permit | Shortfall | NeverFits:
        """Room for ``need`` in all pools, or the first axis that lacks it, with nothing held.

        The room reaches from the committed frontier to frontier + ``need.tokens``. For a sequence
        in a decode round that is not collected it reaches over that round as well, to frontier +
        the tokens of the round in flight + ``need.tokens`` (frontier + 2 at one token a round), and
        the permit is for ``launch_decode(..., ahead_of=that round)``. A refusal of such a permit
        means only that the row is left out of the round ahead: nothing is given up for it, and it
        asks again when its round is settled. A Program refuses a row that it cannot run ahead for
        another reason with ``Shortfall("rounds_ahead", 1, 0)``.
        """
        ...

    def settle(self, permit: Permit) -> None:
        """Give back a permit that was not launched. A launched permit settles with its unit.

        What a round in flight or its permit covers stays.
        """
        ...

    def launch_prefill(self, row: ChunkRow) -> Launched: ...

    def launch_replay(self, row: ChunkRow) -> Launched: ...

    def launch_decode(
        self, rows: Sequence[DecodeRow], *, ahead_of: Launched | None = None
    ) -> Launched:
        """All permitted rows, exact B.

        ``ahead_of`` is the latest decode round, finished and not collected; given exactly when
        there is one, and never if ``limits.rounds_ahead`` is 0. Of the rows, those that are in it
        too go on from the tokens it will produce, which the host does not know: they have no masks,
        and enough budget whatever it produces. The others join, from their committed frontier.
        Neither needs the same place or order in both rounds. A control unit and a chunk of other
        sequences may have been launched in between.

        Until both are settled, nothing that the commit of the earlier round may need is
        overwritten, and the state that it leaves is kept for the rows that end in it or are void in
        the later one. ``finish`` and the context operations are called only on sequences in no
        unit, but they are called for those, and freed room is given to others, while a round is in
        flight. ``Launched.finish`` of the later round follows its launch at once.
        """
        ...

    def has_room_again(self, launched: Launched) -> bool:
        """Whether :meth:`launch_again` may follow: every row of ``launched``, the latest decode
        round, has room for the round behind it, and needs as many tokens there as in this one. A
        Program may always say no."""
        ...

    def may_follow(
        self, launched: Launched, sequences: Sequence[SequenceHandle], *, decided: bool
    ) -> bool:
        """Whether a round of ``sequences`` may be enqueued behind ``launched``, the latest decode
        round, before that is collected: whatever it must know of it is on the device. ``decided``
        says that what is drawn alone decides how the rows go on, no mask and no spent thinking
        budget. Asked only with ``limits.rounds_ahead`` and ``limits.draft_tokens``; a round without
        drafts may always follow one without."""
        ...

    def launch_again(self, launched: Launched) -> Launched:
        """``launch_decode`` with the rows of ``launched`` in their order, none of which has masks,
        and ``ahead_of=launched``.

        What nearly every round of a long answer is: no permit is made, since the room is there.
        """
        ...

    def launch_control(self, rows: Sequence[ControlRow]) -> Launched: ...

    def before_results(self, rehearse: Callable[[], object]) -> None:
        """Have ``rehearse`` called while ``Launched.collect`` waits for a decode round, shortly
        before the round should end, if the wait is so long that the caches go cold. A Program need
        not do so."""
        ...

    def commit(self, pending: PendingBatch, decisions: Sequence[RowDecision]) -> None:
        """Take the whole batch: KV, state, counts, RNG position and provenance together.

        Cancelled, failed and void rows stay at their frontier and are released by ``finish``; a
        void row may go on with a control unit instead. In launch order: the batch of a round
        launched ahead is committed after that of the round before it. Room that a later round or
        its permit covers is not given back with the earlier one.
        """
        ...

    def abort(self, pending: PendingBatch) -> None:
        """Roll the whole batch back to the frontiers before it.

        In reverse launch order: EngineFailure while a later round with one of its rows is neither
        committed nor aborted. A round whose predecessor was aborted can only be aborted.
        """
        ...

    def finish(self, sequence: SequenceHandle, *, keep: bool) -> Captured | Released:
        """End a resident sequence in no unit; ``keep`` publishes its committed end if it can."""
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
