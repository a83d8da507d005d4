"""Units of one's own on a Program that serves nobody yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ninfer_core.contract.checkpoints import BindRequest, Bound, OutputRules, Plan
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.events import ReuseReason
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.program import Program
from ninfer_core.contract.resources import SequenceHandle
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.contract.units import (
    ChunkRow,
    DecodeRow,
    Disposition,
    Launched,
    PendingBatch,
    Permit,
    RowDecision,
)

_GREEDY = SamplingParams(temperature=0.0, seed=0)

Prepare = Callable[[int], PreparedPrompt]
"""A prompt of so many tokens that keeps out of the cache."""


class NoRoom(Exception):
    """The stores do not hold what was to be run."""


@dataclass(slots=True)
class Row:
    """A resident sequence: tokens that it has, and how many it may have at most."""

    handle: SequenceHandle
    lane: int
    length: int
    most: int


class UnitDriver:
    """Binds sequences, reads prompts and runs rounds. Worker only, while no request is inside."""

    def __init__(self, program: Program, prepare: Prepare, clock: Callable[[], float]) -> None:
        self._program = program
        self._prepare = prepare
        self._clock = clock
        self._lanes = list(range(program.limits.max_concurrency))
        self._orders = 0
        self._rows: list[Row] = []

    def bind(self, length: int, new: int) -> Row:
        """A sequence at the beginning of a prompt of ``length``. Raises NoRoom."""
        self._orders += 1
        request = BindRequest(
            lane=self._lanes[0],
            prepared=self._prepare(length),
            sampling=_GREEDY,
            rules=OutputRules(max_new_tokens=new),
            publication_order=self._orders,
            source_reason=ReuseReason.DISABLED,
        )
        plan = self._program.plan_bind(request)
        if not isinstance(plan, Plan):
            raise NoRoom(str(plan))
        transaction, result = self._program.begin(plan), None
        while result is None:
            result = transaction.advance()
        if not isinstance(result, Bound):
            raise EngineFailure(f"a prompt to be timed was not bound: {result}")
        row = Row(result.sequence, self._lanes.pop(0), 0, length + new)
        self._rows.append(row)
        return row

    def decoding(self, length: int, new: int) -> Row:
        """A sequence behind a whole prompt and its first token. Raises NoRoom."""
        row = self.bind(length, new)
        while row.length < length:
            self.read(row)
        row.length += 1
        return row

    def read(self, row: Row) -> None:
        """The next chunk of a prompt. Raises NoRoom."""
        [permit] = self._permits([row])
        self._take(self._launch_chunk(row, permit))

    def round(self, rows: Sequence[Row]) -> float:
        """One decode round; the time when it was over. Raises NoRoom."""
        launched = self._launch_round(rows, self._permits(rows))
        return self._settle_round(launched, rows)

    def round_and_chunk(self, rows: Sequence[Row], reader: Row) -> int:
        """A decode round and a chunk that is launched behind it, both to their ends. Returns the
        tokens of the chunk. Raises NoRoom."""
        *permits, permit = self._permits([*rows, reader])
        launched = self._launch_round(rows, permits)
        chunk = self._launch_chunk(reader, permit)
        self._settle_round(launched, rows)
        self._take(chunk)
        return permit.need.tokens

    def end(self, row: Row) -> None:
        self._program.finish(row.handle, keep=False)
        self._rows.remove(row)
        self._lanes.append(row.lane)

    def end_all(self) -> None:
        while self._rows:
            self.end(self._rows[-1])

    def _permits(self, rows: Sequence[Row]) -> list[Permit]:
        """Room for the next unit of all of them, or NoRoom with nothing held."""
        permits: list[Permit] = []
        for row in rows:
            permit = self._program.reserve(row.handle, self._program.unit_need(row.handle))
            if not isinstance(permit, Permit):
                for held in permits:
                    self._program.settle(held)
                raise NoRoom(str(permit))
            permits.append(permit)
        return permits

    def _launch_chunk(self, row: Row, permit: Permit) -> Launched:
        launched = self._program.launch_prefill(ChunkRow(sequence=row.handle, permit=permit))
        launched.finish()
        row.length += permit.need.tokens
        return launched

    def _launch_round(self, rows: Sequence[Row], permits: Sequence[Permit]) -> Launched:
        launched = self._program.launch_decode(
            [
                DecodeRow(sequence=row.handle, permit=permit)
                for row, permit in zip(rows, permits, strict=True)
            ]
        )
        launched.finish()
        return launched

    def _settle_round(self, launched: Launched, rows: Sequence[Row]) -> float:
        for row, produced in zip(rows, self._take(launched), strict=True):
            row.length += produced
        return self._clock()

    def _take(self, launched: Launched) -> list[int]:
        """Wait for a unit and accept what it produced: tokens by row."""
        outcome = launched.collect()
        if not isinstance(outcome, PendingBatch):
            return []
        produced = [len(row.token_ids) for row in outcome.rows]
        accept = [RowDecision(disposition=Disposition.ACCEPT, accepted=n) for n in produced]
        self._program.commit(outcome, accept)
        return produced
