"""Launching speculative rounds on a device with a queue."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from ninfer_core.contract.frontend import ColumnState
from ninfer_core.ops.table import Ops
from ninfer_qwen3_5.program.queued.lanes import LaneState
from ninfer_qwen3_5.program.queued.masks import MaskBlock
from ninfer_qwen3_5.program.queued.results import fetch
from ninfer_qwen3_5.program.queued.ring import CHANGES
from ninfer_qwen3_5.program.queued.rounds import Part
from ninfer_qwen3_5.program.queued.spec_flight import Results, SpecLaunch, SpecRow
from ninfer_qwen3_5.program.queued.spec_inputs import Behind, RowWords, SpecInputs
from ninfer_qwen3_5.program.queued.spec_rounds import Held, SpecRounds
from ninfer_qwen3_5.program.units import UnitRow
from ninfer_qwen3_5.program.work import RowWork

if TYPE_CHECKING:
    from ninfer_core.device.base import Lane
    from ninfer_core.store.block_tables import BlockTables


class SpecLauncher:
    """Turns rows into launches, and accepted rows into folds."""

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
        self.inputs = inputs
        self._lanes = lanes
        self._tables = tables
        self._pinned_masks = pinned_masks
        self._masks = masks
        self._ops = ops
        self._lane = lane
        self._number = 0
        self._latest: dict[int, SpecRow] = {}

    @property
    def latest(self) -> bool:
        """Whether the round launched last is one of these."""
        return bool(self._latest)

    def passed(self) -> None:
        """A plain round was launched."""
        self._latest = {}

    def launch(self, rows: Rows[UnitRow]) -> SpecLaunch:
        """Enqueue a round, and before it the folds of what the rows in flight will have accepted;
        what draws waits for ``finish`` where a row has masks."""
        opened = [self._open(index, row) for index, row in enumerate(rows)]
        self._fold_ahead([one for one in opened if one.before is not None])
        masked = any(row.masks is not None for row in rows)
        width = self._rounds.width(max(row.work.executed for row in rows), masked=masked)
        changes = self._lanes.changes(self._tables, CHANGES) if self._tables.pending else []
        self.inputs.send([_words(one) for one in opened], width, changes)
        if changes:
            self._rounds.replay_changes()
        plain = all(row.work.sequence.plain for row in rows)
        part = Part.FORWARD if masked else Part.GREEDY if plain else Part.DRAWN
        held = self._rounds.replay(len(rows), part, width)
        launch = SpecLaunch(self, opened, held, width, masked=masked)
        self._number += 1
        self._latest = {row.work.sequence.row: one for row, one in zip(rows, opened, strict=True)}
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

    def follow(self, rows: Rows[UnitRow], held: Held, width: int, wanted: int) -> Results:
        """Enqueue behind the draw: the drafts that go on from it, as many as any row has use for if
        it produces one token, and all results' way back."""
        import torch

        self._rounds.replay_drafts(len(rows), wanted)
        listed, tops = None, [row.work.sequence.top for row in rows]
        if any(top is not None for top in tops):
            with torch.inference_mode():
                tokens = self.inputs.answers(len(rows), width)[0]
                made = self._ops.logprobs(held.logits, tokens, max(top or 0 for top in tops))
            listed = fetch([made.chosen, made.top_ids, made.top_values], self._lane)
        place = self.inputs.fetch()
        return Results(self._lane.record(), place, listed)

    def uncount(self, work: RowWork, tokens: Rows[int]) -> None:
        """The device counted tokens that a row did not produce."""
        if tokens and work.sequence.request.sampling.penalised:
            self._lanes.add_count(work.sequence.row, tokens, -1)

    def fold(self, works: Rows[RowWork], counts: Rows[int]) -> None:
        """Enqueue the states after so many rows of each, into the slots the works leave them in,
        where the round behind has not brought them there."""
        rows = []
        for work, count in zip(works, counts, strict=True):
            kept = work.verified
            assert kept is not None
            if kept.folded != count:
                lane = work.sequence.row
                rows.append((kept.source, kept.target, lane, count, kept.place + count - 1))
        self._fold(rows)

    def _open(self, index: int, row: UnitRow) -> SpecRow:
        work = row.work
        work.counted = True
        opened = SpecRow(
            row, work.source_slot, work.target_slot, self._rounds.place(self._number, index)
        )
        if work.behind:
            opened.behind = Behind.PLAIN
            before = self._latest.get(work.sequence.row)
            if before is not None and before.row.work.sequence is work.sequence:
                opened.behind, opened.before, before.followed = Behind.SPECULATIVE, before, True
        return opened

    def _fold_ahead(self, rows: Rows[SpecRow]) -> None:
        before = [row.before for row in rows if row.before is not None]
        self._fold([(one.source, one.target, one.lane, -1, -1) for one in before])

    def _fold(self, rows: Rows[tuple[int, int, int, int, int]]) -> None:
        if rows:
            self.inputs.send_fold(rows)
            self._rounds.replay_fold(len(rows))


def _words(opened: SpecRow) -> RowWords:
    work = opened.row.work
    sequence = work.sequence
    known = opened.behind is Behind.NOTHING
    return RowWords(
        ids=(sequence.waiting_token, *work.drafts) if known else (0,),
        start=work.start,
        delta=sequence.rope_delta,
        slot=opened.source,
        lane=sequence.row,
        remaining=sequence.remaining - work.behind,
        most=work.wanted,
        behind=opened.behind,
        place=opened.place,
    )
