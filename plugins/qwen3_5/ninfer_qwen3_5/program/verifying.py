"""Speculative rounds on a device that computes when asked: verify, accept, observe, propose."""

from __future__ import annotations

import time
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from ninfer_core.contract.frontend import MaskProvider
from ninfer_core.contract.resources import SequenceHandle
from ninfer_core.contract.single_use import SingleUse
from ninfer_core.contract.units import PendingBatch, PendingRow, UnitKind
from ninfer_core.ops.contracts.values import PagedRows
from ninfer_qwen3_5.program.drafting import Drafter, live_rows
from ninfer_qwen3_5.program.executor import Executor, Verifying
from ninfer_qwen3_5.program.judging import Judge, Judged
from ninfer_qwen3_5.program.units import UnitRow
from ninfer_qwen3_5.program.work import RowWork, Verified

if TYPE_CHECKING:
    from torch import Tensor


class Verifier:
    """What the rounds of a launch compute."""

    def __init__(self, executor: Executor, drafter: Drafter, judge: Judge) -> None:
        self._executor = executor
        self._drafter = drafter
        self._judge = judge

    def run(self, works: Rows[RowWork]) -> Verifying:
        """The waiting token and the drafts of every row."""
        import torch

        with torch.inference_mode():
            sequences = [work.sequence for work in works]
            return self._executor.verify(sequences, [work.drafts for work in works])

    def settle(
        self, works: Rows[RowWork], masks: Rows[MaskProvider | None], ran: Verifying
    ) -> list[Judged]:
        """Judge the rows, let the drafter see them, and note in each work what a commit needs."""
        import torch

        with torch.inference_mode():
            sequences = [work.sequence for work in works]
            drafts = [work.drafts for work in works]
            judged = self._judge.judge(ran.logits, sequences, drafts, masks)
            self._drafter.after_rows(ran.ids, ran.seen, ran.place)
            hidden = ran.hidden
            if hidden is not None:
                hidden = hidden.view(len(works), -1, hidden.shape[1])
            proposed = self._propose(works, judged, hidden, ran.place.rows)
            for place, (work, drafted) in enumerate(zip(works, proposed, strict=True)):
                rows = None if hidden is None else hidden[place]
                work.verified, work.proposed = Verified(rows), drafted
        return judged

    def fold(self, works: Rows[RowWork], counts: Rows[int]) -> None:
        """Build the state after so many rows of each in its spare slot."""
        import torch

        with torch.inference_mode():
            slots = torch.tensor([work.source_slot for work in works])
            targets = torch.tensor([work.target_slot for work in works])
            taken = torch.tensor(counts, dtype=torch.int32)
            executor = self._executor
            executor.state.fold(executor.model.ops, slots, taken, targets)
            kept = self._drafter.hidden
            if kept is None:
                return
            for work, count in zip(works, counts, strict=True):
                assert work.verified is not None
                assert work.verified.hidden is not None
                kept[work.target_slot] = work.verified.hidden[count - 1]

    def open(self, work: RowWork, token: int) -> None:
        """Draft behind a prompt that ran and the first token after it."""
        import torch

        with torch.inference_mode():
            kept, slot = self._drafter.hidden, work.target_slot
            hidden = None if kept is None else kept[slot : slot + 1]
            stop = work.start + work.executed
            (work.proposed,) = self._drafts([work], [1], [token], hidden, [stop])

    def _propose(
        self, works: Rows[RowWork], judged: Rows[Judged], hidden_BWH: Tensor | None, ran: PagedRows
    ) -> list[tuple[int, ...]]:
        """Drafts behind what each row produced."""
        import torch

        counts = [len(row.token_ids) for row in judged]
        hidden = None
        if hidden_BWH is not None:
            hidden = hidden_BWH[torch.arange(len(works)), torch.tensor(counts) - 1]
        starts = [start + count for start, count in zip(ran.starts.tolist(), counts, strict=True)]
        ids = [row.token_ids[-1] for row in judged]
        return self._drafts(works, counts, ids, hidden, starts)

    def _drafts(
        self,
        works: Rows[RowWork],
        counts: Rows[int],
        ids: list[int],
        hidden_BH: Tensor | None,
        starts: list[int],
    ) -> list[tuple[int, ...]]:
        """Drafts behind tokens ``ids``, which stand at ``starts`` and are the last of ``counts``
        produced: as many as each budget has use for."""
        import torch

        sequences = [work.sequence for work in works]
        wanted = [work.useful_drafts(count) for work, count in zip(works, counts, strict=True)]
        if not any(wanted):
            return [()] * len(works)
        useful = torch.tensor(wanted, dtype=torch.int32)
        columns = [
            self._executor.columns(
                sequences,
                [start + first for start in starts],
                live_rows(useful, place, block=self._drafter.block),
                width,
            )
            for place, (first, width) in enumerate(self._drafter.widths(max(wanted)))
        ]
        waiting = torch.tensor(ids, dtype=torch.int32)
        settings = self._judge.settings(sequences)
        drafts = self._drafter.propose(waiting, hidden_BH, columns, settings).drafts.tolist()
        return [tuple(row[:count]) for row, count in zip(drafts, wanted, strict=True)]


class VerifyLaunch(SingleUse):
    """A decode round whose rows verify drafts; launch runs Forward, finish the rest."""

    kind = UnitKind.DECODE

    def __init__(self, rows: Rows[UnitRow], verifier: Verifier) -> None:
        super().__init__()
        self.works = tuple(row.work for row in rows)
        self._handles: tuple[SequenceHandle, ...] = tuple(row.handle for row in rows)
        self._masks = tuple(row.masks for row in rows)
        self._verifier = verifier
        self._judged: list[Judged] | None = None
        started = time.perf_counter()
        self._ran = verifier.run(self.works)
        self._seconds = time.perf_counter() - started

    def finish(self) -> None:
        """Fill the masks, accept and propose; later calls do nothing."""
        if self._judged is None:
            started = time.perf_counter()
            self._judged = self._verifier.settle(self.works, self._masks, self._ran)
            self._seconds += time.perf_counter() - started

    def collect(self) -> PendingBatch:
        """What each row produced, 1 to K + 1 tokens. Consumes the launch."""
        self.consume()
        self.finish()
        assert self._judged is not None
        rows = tuple(
            PendingRow(
                sequence=handle,
                frontier=work.sequence.ledger_length,
                token_ids=judged.token_ids,
                status=judged.status,
                logprobs=judged.logprobs,
                drafted=work.executed - 1,
            )
            for handle, work, judged in zip(self._handles, self.works, self._judged, strict=True)
        )
        return PendingBatch(self.kind, rows, device_seconds=self._seconds, detail=self.works)
