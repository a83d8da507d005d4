"""Units without a model: keys are tokens, values their positions, the state a fold of all tokens.

Whatever reads a page or a slot of somebody else, or one that was freed, then reads other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ninfer_core.contract.instance import Budget
from ninfer_core.contract.resources import ProgramLimits
from ninfer_core.contract.units import PendingBatch, PendingRow, Progress, UnitKind
from ninfer_core.ops.contracts.transfers import image_bytes
from ninfer_core.ops.contracts.values import KvCache
from ninfer_core.ops.reference import OPS
from ninfer_qwen3_5.model.state import GdnState, ModelState
from ninfer_qwen3_5.program.host_tier import open_host_tier
from ninfer_qwen3_5.program.layout import SCRATCH_SLOTS, Layout, StateSizes
from ninfer_qwen3_5.program.program import TextProgram
from ninfer_qwen3_5.program.stores import Stores
from ninfer_qwen3_5.program.transfers import page_planes, slot_planes
from tests.model.late_copies import LateCopies

VOCAB = 500
BYTES = 512
"""Of a page and of a state alike, so that the host has room exactly when it has enough bytes."""


def fold(state: int, token: int) -> int:
    """Exact in float32."""
    return (state * 33 + token + 1) % 100_003


def state_after(tokens: Sequence[int]) -> int:
    state = 0
    for token in tokens:
        state = fold(state, token)
    return state


class WritingUnits:
    """See :class:`ninfer_qwen3_5.program.units.Units`."""

    rounds_ahead = 0

    def __init__(self, state: ModelState, tables: torch.Tensor) -> None:
        [cache] = [layer for layer in state.layers if isinstance(layer, KvCache)]
        self.keys, self.values = cache.keys[:, :, 0, 0], cache.values[:, :, 0, 0]
        self.states = state.recurrent.recurrent[0, :, 0, 0, 0]
        self.tables = tables

    def admit(self, sequence: Any) -> None:
        return None

    def prefill(self, row: Any, *, draws: bool, advance: Callable[[Any], None]) -> Any:
        return Written(self, UnitKind.PREFILL, [row], None if draws else advance)

    def replay(self, row: Any, *, advance: Callable[[Any], None]) -> Any:
        return Written(self, UnitKind.REPLAY, [row], advance)

    def decode(self, rows: Sequence[Any], *, ahead: bool) -> Any:
        assert not ahead
        return Written(self, UnitKind.DECODE, rows, None)

    def control(self, rows: Sequence[Any], tokens: Any) -> Any:
        raise AssertionError("nobody forces tokens here")

    def accepted(self, works: Any, tokens: Any) -> None:
        return None

    def dropped(self, work: Any, tokens: Any) -> None:
        return None

    def close(self) -> None:
        return None

    def run(self, work: Any) -> int:
        """Write the tokens of a row through its block table; returns the next token."""
        sequence, state = work.sequence, int(self.states[work.source_slot])
        tokens = sequence.tokens(work.start, work.start + work.executed)
        for position, token in enumerate(tokens, work.start):
            page = int(self.tables[sequence.row, position // 64])
            self.keys[page, position % 64], self.values[page, position % 64] = token, position
            state = fold(state, token)
        self.states[work.target_slot] = state
        return state % VOCAB


class Written:
    """A unit that is done when it is launched."""

    def __init__(
        self,
        units: WritingUnits,
        kind: UnitKind,
        rows: Sequence[Any],
        advance: Callable[[Any], None] | None,
    ) -> None:
        self.kind = kind
        self._rows = rows
        self._advance = advance
        self._tokens = [units.run(row.work) for row in rows]

    def finish(self) -> None:
        return None

    def collect(self) -> PendingBatch | Progress:
        if self._advance is not None:
            [row] = self._rows
            self._advance(row.work)
            return Progress(sequence=row.handle, frontier=row.work.sequence.frontier)
        made = [
            PendingRow(sequence=row.handle, frontier=row.work.sequence.frontier, token_ids=(token,))
            for row, token in zip(self._rows, self._tokens, strict=True)
        ]
        works = tuple(row.work for row in self._rows)
        return PendingBatch(self.kind, tuple(made), detail=works)


def build(budget: Budget, lag: int) -> tuple[TextProgram, WritingUnits, Any]:
    """A Program over such units, and its transfers; copies are late."""
    layout = Layout.plan(budget)
    slots = layout.slots + SCRATCH_SLOTS
    caches = [torch.zeros(layout.pages, 64, 1, 1) for _ in "kv"]
    history, recurrent = torch.zeros(1, slots, 3, 4), torch.zeros(1, slots, 1, 4, 29)
    whole = GdnState(history, recurrent)
    layers = (KvCache("fp32", *caches), GdnState(history[0], recurrent[0]))
    state = ModelState(layers, whole)
    sizes = StateSizes(image_bytes(page_planes(state)), image_bytes(slot_planes(state)))
    assert (sizes.page, sizes.slot) == (BYTES, BYTES)
    tables = torch.full((layout.rows, layout.pages_per_sequence), -1, dtype=torch.int32)
    stores = Stores(layout, tables, sizes.page, sizes.slot, budget.host_bytes)
    device = LateCopies(lag)
    tier = open_host_tier(device.ops(OPS), state, device, stores, sizes, layout.pages_per_sequence)
    units = WritingUnits(state, tables)
    limits = ProgramLimits(
        max_context=budget.max_context,
        max_concurrency=budget.max_concurrency,
        prefill_chunk=budget.prefill_chunk,
        vocab_rows=VOCAB,
    )
    program = TextProgram(limits, stores, state, units, {}, True, tier)
    assert tier is not None
    return program, units, tier.transfers
