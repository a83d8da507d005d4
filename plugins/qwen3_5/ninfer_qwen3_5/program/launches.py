"""Units in flight on a device that computes when asked: launch runs Forward, finish samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from ninfer_core.contract.frontend import MaskProvider
from ninfer_core.contract.resources import SequenceHandle
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.contract.single_use import SingleUse
from ninfer_core.contract.units import (
    PendingBatch,
    PendingRow,
    Progress,
    RowStatus,
    UnitKind,
)
from ninfer_core.ops.contracts.values import DrawPurpose
from ninfer_qwen3_5.program.sampler import Sampled, Sampler
from ninfer_qwen3_5.program.work import RowWork

if TYPE_CHECKING:
    from torch import Tensor


class SampledLaunch(SingleUse):
    """A decode round, or the last chunk of a prompt: rows whose next token is drawn."""

    def __init__(
        self,
        kind: UnitKind,
        handles: Rows[SequenceHandle],
        works: Rows[RowWork],
        masks: Rows[MaskProvider | None],
        sampler: Sampler,
        forward: Callable[[], Tensor],
        scored: tuple[TokenLogprobs, ...] = (),
        follow: Callable[[RowWork, int], None] | None = None,
    ) -> None:
        """``follow`` is told the token of every row that has a sound one."""
        super().__init__()
        self.kind = kind
        self._follow = follow
        self.works = tuple(works)
        self._handles = tuple(handles)
        self._masks = tuple(masks)
        self._sampler = sampler
        self._scored = scored
        self._sampled: Sampled | None = None
        started = time.perf_counter()
        self._logits: Tensor | None = forward()
        self._seconds = time.perf_counter() - started

    def finish(self) -> None:
        """Fill the masks and draw; later calls do nothing."""
        if self._logits is None:
            return
        import torch

        started = time.perf_counter()
        purpose = DrawPurpose.PREFILL if self.kind is UnitKind.PREFILL else DrawPurpose.DECODE
        with torch.inference_mode():
            sequences = [work.sequence for work in self.works]
            made = self._sampled = self._sampler.sample(
                self._logits, sequences, self._masks, purpose
            )
        self._logits = None
        if self._follow is not None:
            for work, token, status in zip(self.works, made.token_ids, made.statuses, strict=True):
                if status is RowStatus.OK:
                    self._follow(work, token)
        self._seconds += time.perf_counter() - started

    def collect(self) -> PendingBatch:
        """The drawn tokens, one per row. Consumes the launch."""
        self.consume()
        self.finish()
        assert self._sampled is not None
        drawn = zip(
            self._handles,
            self.works,
            self._sampled.token_ids,
            self._sampled.statuses,
            self._sampled.logprobs,
            strict=True,
        )
        rows = tuple(
            PendingRow(
                sequence=handle,
                frontier=work.sequence.ledger_length,
                token_ids=(token,),
                status=status,
                logprobs=logprobs,
                scored=self._scored,
            )
            for handle, work, token, status, logprobs in drawn
        )
        return PendingBatch(self.kind, rows, device_seconds=self._seconds, detail=self.works)


class ForcedLaunch(SingleUse):
    """A control unit: the rows' tokens are given, nothing is drawn."""

    kind = UnitKind.CONTROL

    def __init__(
        self,
        handles: Rows[SequenceHandle],
        works: Rows[RowWork],
        tokens: Rows[tuple[int, ...]],
        forward: Callable[[], None],
    ) -> None:
        super().__init__()
        self.works = tuple(works)
        self._rows = tuple(
            PendingRow(sequence=handle, frontier=work.sequence.ledger_length, token_ids=row)
            for handle, work, row in zip(handles, works, tokens, strict=True)
        )
        started = time.perf_counter()
        forward()
        self._seconds = time.perf_counter() - started

    def finish(self) -> None:
        """Nothing is sampled."""

    def collect(self) -> PendingBatch:
        self.consume()
        return PendingBatch(self.kind, self._rows, device_seconds=self._seconds, detail=self.works)


class ChunkLaunch(SingleUse):
    """A chunk that draws nothing: it is committed where it is collected."""

    def __init__(
        self,
        kind: UnitKind,
        handle: SequenceHandle,
        work: RowWork,
        forward: Callable[[], tuple[TokenLogprobs, ...]],
        advance: Callable[[RowWork], None],
    ) -> None:
        super().__init__()
        self.kind = kind
        self.works = (work,)
        self._handle = handle
        self._advance = advance
        started = time.perf_counter()
        self._scored = forward()
        self._seconds = time.perf_counter() - started

    def finish(self) -> None:
        """Nothing is sampled."""

    def collect(self) -> Progress:
        self.consume()
        (work,) = self.works
        self._advance(work)
        broken = any(entry.logprob != entry.logprob for entry in self._scored)
        if broken:
            work.sequence.fail()
        return Progress(
            sequence=self._handle,
            frontier=work.sequence.frontier,
            scored=self._scored,
            status=RowStatus.NONFINITE if broken else RowStatus.OK,
            device_seconds=self._seconds,
        )
