"""Speculative rounds in flight on a device with a queue; only ``collect`` waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from ninfer_core.contract.frontend import ColumnState
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.contract.single_use import SingleUse
from ninfer_core.contract.units import PendingBatch, PendingRow, UnitKind
from ninfer_core.ops.contracts.values import LogprobRows
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.program.judging import Judged, judged_row
from ninfer_qwen3_5.program.queued.lanes import LaneState
from ninfer_qwen3_5.program.queued.masks import MaskBlock
from ninfer_qwen3_5.program.queued.results import Coming, fetch
from ninfer_qwen3_5.program.queued.rounds import Part
from ninfer_qwen3_5.program.queued.spec_inputs import Answer, RowWords, SpecInputs
from ninfer_qwen3_5.program.queued.spec_rounds import Held, SpecRounds
from ninfer_qwen3_5.program.sampler import token_logprobs
from ninfer_qwen3_5.program.units import UnitRow
from ninfer_qwen3_5.program.work import RowWork, Verified

if TYPE_CHECKING:
    from ninfer_core.device.base import Event, Lane
    from ninfer_core.store.block_tables import BlockTables


class SpecLauncher:
    """Turns rows into launches, and accepted rows into folds. One round at a time."""

    def __init__(
        self,
        rounds: SpecRounds,
        inputs: SpecInputs,
        lanes: LaneState,
        tables: BlockTables,
        pinned_masks: MaskBlock,
        masks: MaskBlock,
        ops: Ops,
        lane: Lane,
    ) -> None:
        self._rounds = rounds
        self._inputs = inputs
        self._lanes = lanes
        self._tables = tables
        self._pinned_masks = pinned_masks
        self._masks = masks
        self._ops = ops
        self._lane = lane
        self.rehearse: Callable[[], object] | None = None
        """What a host may do before results come; rounds that verify leave it no time that it
        would otherwise lose."""

    def launch(self, rows: Rows[UnitRow]) -> SpecLaunch:
        """Enqueue a round; what draws waits for ``finish`` where a row has masks."""
        self._send_tables()
        sequences = [row.work.sequence for row in rows]
        width = self._inputs.width
        self._inputs.send([_words(row.work) for row in rows], width)
        if any(row.masks is not None for row in rows):
            part = Part.FORWARD
        else:
            part = Part.GREEDY if all(s.plain for s in sequences) else Part.DRAWN
        held = self._rounds.replay(len(rows), part, width)
        launch = SpecLaunch(self, rows, held, masked=part is Part.FORWARD)
        if part is not Part.FORWARD:
            launch.follow()
        return launch

    def draw(self, rows: Rows[UnitRow], width: int) -> list[bool]:
        """Fill the masks and enqueue the drawing half; says which columns allow nothing."""
        dead = [False] * (len(rows) * width)
        self._pinned_masks.masks.active[: len(dead)] = False
        for index, row in enumerate(rows):
            if row.masks is None:
                continue
            drafts, first = row.work.drafts, index * width
            words = self._pinned_masks.masks.words[first : first + len(drafts) + 1]
            states = row.masks.fill(drafts, words.numpy().view("uint32"))
            for place, state in enumerate(states):
                self._pinned_masks.masks.active[first + place] = state is ColumnState.READY
                dead[first + place] = state is ColumnState.DEAD_END
        self._pinned_masks.send(len(dead), self._masks)
        self._rounds.replay(len(rows), Part.FINISH, width)
        return dead

    def follow(self, rows: Rows[UnitRow], held: Held) -> tuple[Event, Coming | None]:
        """Enqueue the results' way to the host behind the draw."""
        import torch

        listed, tops = None, [row.work.sequence.top for row in rows]
        if any(top is not None for top in tops):
            with torch.inference_mode():
                tokens = self._inputs.answers(len(rows), held.width)[0]
                made = self._ops.logprobs(held.logits, tokens, max(top or 0 for top in tops))
            listed = fetch([made.chosen, made.top_ids, made.top_values], self._lane)
        self._inputs.fetch()
        return self._lane.record(), listed

    def answer(self, count: int, width: int) -> Answer:
        return self._inputs.answer(count, width)

    def fold(self, works: Rows[RowWork], counts: Rows[int]) -> None:
        """Enqueue the states after so many rows of each, into the slots the works leave them in."""
        rows = []
        for work, count in zip(works, counts, strict=True):
            assert work.verified is not None
            last = work.verified.place + count - 1
            rows.append((work.source_slot, work.target_slot, count, last))
        self._inputs.send_fold(rows)
        self._rounds.replay_fold(len(rows))

    def _send_tables(self) -> None:
        """Whole rows of the block table, where they changed. Nothing runs that reads them, and
        the host changes none before this round's results are there."""
        if self._tables.pending:
            for row in {row for row, _, _ in self._tables.drain()}:
                self._lanes.send_row(self._tables, row)


class SpecLaunch(SingleUse):
    """A decode round whose rows verify drafts."""

    kind = UnitKind.DECODE

    def __init__(
        self, launcher: SpecLauncher, rows: Rows[UnitRow], held: Held, *, masked: bool
    ) -> None:
        super().__init__()
        self.works = tuple(row.work for row in rows)
        self._launcher = launcher
        self._rows = rows
        self._held = held
        self._masked = masked
        self._dead: list[bool] | None = None
        self._coming: tuple[Event, Coming | None] | None = None
        self._launched = time.perf_counter()

    def follow(self) -> None:
        self._coming = self._launcher.follow(self._rows, self._held)

    def finish(self) -> None:
        """Fill the masks and enqueue what they hold up; later calls do nothing."""
        if self._coming is None:
            self._dead = self._launcher.draw(self._rows, self._held.width)
            self.follow()

    def collect(self) -> PendingBatch:
        """What each row produced, 1 to K + 1 tokens. Consumes the launch."""
        self.consume()
        self.finish()
        assert self._coming is not None
        began = time.perf_counter()
        self._coming[0].wait()
        ended = time.perf_counter()
        width = self._held.width
        answer = self._launcher.answer(len(self._rows), width)
        listed = self._listed(answer)
        rows = []
        for index, row in enumerate(self._rows):
            work, judged = row.work, self._judged(index, answer, listed)
            whole = len(judged.token_ids) == answer.accepted[index] + 1
            drafts = tuple(answer.drafts[index]) if whole else ()
            useful = work.useful_drafts(len(judged.token_ids))
            work.verified, work.proposed = Verified(place=index * width), drafts[:useful]
            rows.append(
                PendingRow(
                    sequence=row.handle,
                    frontier=work.sequence.ledger_length,
                    token_ids=judged.token_ids,
                    status=judged.status,
                    logprobs=judged.logprobs,
                    drafted=work.executed - 1,
                )
            )
        return PendingBatch(
            self.kind,
            tuple(rows),
            device_seconds=ended - self._launched,
            waited_seconds=ended - began,
            detail=self.works,
        )

    def _judged(
        self, index: int, answer: Answer, listed: list[TokenLogprobs | None] | None
    ) -> Judged:
        tokens, width = answer.tokens[index], len(answer.tokens[index])
        columns = slice(index * width, (index + 1) * width)
        dead = [False] * width if self._dead is None else self._dead[columns]
        none: list[TokenLogprobs | None] = [None] * width
        logprobs = none if listed is None else listed[columns]
        broken = [bool(word) for word in answer.broken[index]]
        return judged_row(tokens, self._rows[index].work.drafts, broken, dead, logprobs)

    def _listed(self, answer: Answer) -> list[TokenLogprobs | None] | None:
        assert self._coming is not None
        if self._coming[1] is None:
            return None
        width = len(answer.tokens[0])
        tops = [row.work.sequence.top for row in self._rows for _ in range(width)]
        drawn = [token for row in answer.tokens for token in row]
        rows = LogprobRows(*self._coming[1].wait())
        listed = token_logprobs(rows, drawn, [top or 0 for top in tops])
        return [None if top is None else x for top, x in zip(tops, listed, strict=True)]


def _words(work: RowWork) -> RowWords:
    sequence = work.sequence
    return RowWords(
        ids=(sequence.waiting_token, *work.drafts),
        start=work.start,
        delta=sequence.rope_delta,
        slot=work.source_slot,
        target=work.target_slot,
        lane=sequence.row,
        remaining=sequence.remaining,
        most=work.useful_drafts(1),
    )
