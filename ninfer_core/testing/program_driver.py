"""Drives a Program through its contract without an engine: what a numeric test of one needs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ninfer_core.contract.checkpoints import BindRequest, Bound, OutputRules, Plan, ResumeState
from ninfer_core.contract.events import Channel
from ninfer_core.contract.frontend import PreparedPrompt, PromptIdentity
from ninfer_core.contract.program import Program
from ninfer_core.contract.requests import PromptInput
from ninfer_core.contract.resources import SequenceHandle
from ninfer_core.contract.sampling import SamplingParams, TokenLogprobs
from ninfer_core.contract.units import (
    ChunkRow,
    DecodeRow,
    Disposition,
    Launched,
    PendingBatch,
    Permit,
    RowDecision,
    UnitKind,
)


def prepared_tokens(token_ids: Sequence[int]) -> PreparedPrompt:
    """A text prompt of exactly these tokens."""
    import numpy as np

    ids = np.asarray(token_ids, dtype=np.int32)
    return PreparedPrompt(
        token_ids=ids,
        positions=None,
        rope_delta=0,
        media=(),
        identity=PromptIdentity(hashlib.sha256(ids.tobytes()).digest(), (), "tokens"),
        restore_points=(),
        starts_in=Channel.CONTENT,
        grammar=None,
        request=PromptInput(token_ids=tuple(token_ids)),
    )


@dataclass(slots=True)
class Driven:
    """A resident sequence and what it has produced."""

    handle: SequenceHandle
    request: BindRequest
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    scored: list[TokenLogprobs] = field(default_factory=list)


class ProgramDriver:
    """Binds, prefills and decodes; accepts whatever the Program produces."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._order = 0

    def bind(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams | None = None,
        rules: OutputRules | None = None,
        lane: int = 0,
    ) -> Driven:
        """A sequence from root; greedy and 64 tokens long unless told otherwise."""
        self._order += 1
        return self.adopt(
            BindRequest(
                lane=lane,
                prepared=prepared_tokens(token_ids),
                sampling=sampling or SamplingParams(temperature=0.0, seed=0),
                rules=rules or OutputRules(max_new_tokens=64),
                publication_order=self._order,
            )
        )

    def adopt(self, request: BindRequest) -> Driven:
        plan = self.program.plan_bind(request)
        assert isinstance(plan, Plan), plan
        bound = self._settle_transaction(plan)
        assert isinstance(bound, Bound), bound
        return Driven(bound.sequence, request)

    def prefill(self, sequence: Driven) -> None:
        """Run the prompt (and a replay before it) up to and with the first produced token."""
        while True:
            need = self.program.unit_need(sequence.handle)
            if need.kind not in (UnitKind.PREFILL, UnitKind.REPLAY):
                return
            self.chunk(sequence)

    def chunk(self, sequence: Driven) -> None:
        """One prefill or replay unit."""
        permit = self.permit(sequence)
        row = ChunkRow(sequence=sequence.handle, permit=permit)
        replay = permit.need.kind is UnitKind.REPLAY
        launch = self.program.launch_replay if replay else self.program.launch_prefill
        self._finish(launch(row), [sequence])

    def decode(self, sequences: Iterable[Driven]) -> None:
        """One round over exactly these sequences."""
        members = list(sequences)
        rows = [DecodeRow(sequence=s.handle, permit=self.permit(s)) for s in members]
        self._finish(self.program.launch_decode(rows), members)

    def permit(self, sequence: Driven, control: int = 0) -> Permit:
        need = self.program.unit_need(sequence.handle, control)
        permit = self.program.reserve(sequence.handle, need)
        assert isinstance(permit, Permit), permit
        return permit

    def generate(self, sequence: Driven, count: int) -> list[int]:
        """Alone: the first ``count`` tokens."""
        self.prefill(sequence)
        while len(sequence.tokens) < count:
            self.decode([sequence])
        return sequence.tokens[:count]

    def pause(self, sequence: Driven, plan: Plan) -> ResumeState:
        paused = self._settle_transaction(plan)
        resume = getattr(paused, "resume", None)
        assert isinstance(resume, ResumeState), paused
        return resume

    def finish(self, sequence: Driven) -> None:
        self.program.finish(sequence.handle, keep=False)

    def _settle_transaction(self, plan: Plan) -> object:
        transaction = self.program.begin(plan)
        result = transaction.advance()
        while result is None:
            result = transaction.advance()
        return result

    def _finish(self, launched: Launched, members: Sequence[Driven]) -> None:
        launched.finish()
        outcome = launched.collect()
        if not isinstance(outcome, PendingBatch):
            members[0].scored += outcome.scored
            return
        self.program.commit(outcome, [_accept_all(row.token_ids) for row in outcome.rows])
        for member, row in zip(members, outcome.rows, strict=True):
            member.tokens += row.token_ids
            member.logprobs += row.logprobs
            member.scored += row.scored


def _accept_all(token_ids: tuple[int, ...]) -> RowDecision:
    return RowDecision(disposition=Disposition.ACCEPT, accepted=len(token_ids))
