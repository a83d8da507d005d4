"""How units are run: the seam between the Program's bookkeeping and a device's way of working."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Protocol

from ninfer_core.contract.frontend import MaskProvider
from ninfer_core.contract.resources import SequenceHandle
from ninfer_core.contract.units import Launched, PendingBatch
from ninfer_qwen3_5.program.sequence import Sequence
from ninfer_qwen3_5.program.work import RowWork


@dataclass(slots=True)
class UnitRow:
    """One row of a unit on its way to a launch."""

    handle: SequenceHandle
    work: RowWork
    masks: MaskProvider | None = None


def decide_drafts(rows: Rows[UnitRow]) -> bool:
    """Note in the works of a unit how many drafts are wanted behind it. Returns whether it has to
    do with drafts at all: verifies some, or is to make some."""
    drafting = False
    for row in rows:
        work, steering = row.work, row.work.sequence.steering
        if steering is not None:
            work.wanted = steering.wanted(len(rows), work.behind)
        coming = work.sequence.coming = work.useful_drafts(1 + work.behind)
        drafting = drafting or work.executed > 1 or coming > 0
    return drafting


class Units(Protocol):
    """Runs what the Program has opened; commits nothing.

    ``rounds_ahead``: how many decode rounds may be enqueued behind one that is not yet collected.
    """

    @property
    def rounds_ahead(self) -> int: ...

    def admit(self, sequence: Sequence) -> None:
        """A sequence took its execution row: start what is kept per row."""
        ...

    def prefill(self, row: UnitRow, *, draws: bool, advance: Callable[[RowWork], None]) -> Launched:
        """Prompt tokens; ``draws`` says that the next token is drawn from the last of them.
        A chunk that draws nothing calls ``advance`` when it is collected."""
        ...

    def replay(self, row: UnitRow, *, advance: Callable[[RowWork], None]) -> Launched: ...

    def decode(self, rows: Rows[UnitRow], *, ahead: bool) -> Launched:
        """One token of every row. ``ahead``: behind a round that is not collected, so that the
        tokens to run are on the device alone."""
        ...

    def rows_ahead(self, launched: Launched) -> Rows[UnitRow]:
        """The rows of a round behind which the same may run once more; none where it may not."""
        ...

    def may_follow(self, launched: Launched, sequences: Rows[Sequence], *, decided: bool) -> bool:
        """See ``Program.may_follow``."""
        ...

    def control(self, rows: Rows[UnitRow], tokens: Rows[tuple[int, ...]]) -> Launched: ...

    def before_results(self, rehearse: Callable[[PendingBatch], object]) -> None:
        """Have ``rehearse`` called as ``Program.before_results`` says, with a made-up outcome of
        the round: every row drew the token 0. It is not to be consumed."""
        ...

    def accepted(self, works: Rows[RowWork], tokens: Rows[Rows[int]]) -> None:
        """These tokens, which the device did not count, became part of the ledgers."""
        ...

    def dropped(self, work: RowWork, tokens: Rows[int]) -> None:
        """These were produced and did not."""
        ...

    def fold(self, works: Rows[RowWork], counts: Rows[int]) -> None:
        """Build the state after so many of the verified rows of each, in the slot that the work
        leaves its state in."""
        ...

    def close(self) -> None: ...
