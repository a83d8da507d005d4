"""Units of the fake Program between launch and commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.frontend import ColumnState, MaskProvider
from ninfer_core.contract.resources import SequenceHandle
from ninfer_core.contract.units import PendingBatch, Permit, Progress, RowStatus, UnitKind
from ninfer_core.testing.fake_faults import FaultPlan
from ninfer_core.testing.fake_sequences import FakeSequence


@dataclass(slots=True, eq=False)
class FakeRow:
    """A launched row; ``tokens`` are forced ones, empty where the model draws.

    ``before`` is its row in the round that this one is ahead of, ``start`` the length of the ledger
    on which a decode row runs; ``settled``: it was committed or aborted.
    """

    handle: SequenceHandle
    sequence: FakeSequence
    permit: Permit
    masks: MaskProvider | None = None
    tokens: tuple[int, ...] = ()
    status: RowStatus = RowStatus.OK
    start: int = 0
    before: FakeRow | None = None
    settled: bool = False


class FakeLaunched:
    """Collected once; ``finish`` asks the mask providers, as a real Finish would."""

    def __init__(
        self,
        kind: UnitKind,
        rows: list[FakeRow],
        vocab: int,
        faults: FaultPlan,
        outcome: Callable[[FakeLaunched], PendingBatch | Progress],
    ) -> None:
        self.kind = kind
        self.rows = rows
        self.finished = False
        self.collected = False
        self._vocab = vocab
        self._faults = faults
        self._outcome = outcome

    def finish(self) -> None:
        import numpy as np

        self._faults.check("finish")
        if self.finished:
            raise EngineFailure("a unit was finished twice")
        self.finished = True
        for row in self.rows:
            if row.masks is not None:
                if row.before is not None and not row.before.settled:
                    raise EngineFailure("a mask was filled before the round it follows was settled")
                out = np.zeros((1, -(-self._vocab // 32)), dtype=np.uint32)
                if row.masks.fill((), out)[0] is ColumnState.DEAD_END:
                    row.status = RowStatus.DEAD_END

    def collect(self) -> PendingBatch | Progress:
        if self.collected:
            raise EngineFailure("a unit was collected twice")
        self._faults.check("collect")
        self.collected = True
        return self._outcome(self)
