"""What fits on a device beside the weights: slots, workspace, graphs, and pages from the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ninfer_core.contract.instance import Budget
from ninfer_core.contract.resources import PAGE_TOKENS
from ninfer_core.device.base import MemoryFacts
from ninfer_core.errors import UsageError
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.program.drafting import NO_DRAFTS, DraftRoom
from ninfer_qwen3_5.program.kept_room import KeptRoom, kept_room
from ninfer_qwen3_5.program.layout import (
    SCRATCH_SLOTS,
    SLOTS_PER_SEQUENCE,
    Layout,
    Numerics,
    state_sizes,
)
from ninfer_qwen3_5.program.queued.round_room import RoundRoom, layer_bytes

HEADROOM = 1 << 30
"""Bytes left free for what nobody plans: contexts of libraries, kernels, fragments."""

GRAPH_BYTES = 12 << 20
"""Bytes set aside for each captured graph itself, beside the pool that all of them share; the start
report says what all really took."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The layout and the bytes of every purpose that it was derived from."""

    layout: Layout
    free: int
    headroom: int
    workspace: int
    graphs: int
    state: int
    page: int


def plan_capacity(
    config: TextConfig,
    numerics: Numerics,
    budget: Budget,
    memory: MemoryFacts,
    *,
    rounds_ahead: int,
    graphs: int,
    lanes: int,
    draft: DraftRoom = NO_DRAFTS,
) -> Capacity:
    """Turn what is free after the weights into pages; ``graphs`` counts those of all rows,
    ``lanes`` is the bytes of per-lane tensors, the logits that rounds share among them.

    Raises UsageError when ``kv_tokens`` is too small or one sequence of the full context does not
    fit; then it gives every number, and each option with the largest value that would.
    """
    Layout.plan(budget, rounds_ahead)
    planner = _Planner(config, numerics, memory.free, rounds_ahead, graphs, lanes, budget, draft)
    kept = planner.kept()
    budget = replace(budget, extra_state_slots=kept.slots)
    spent = planner.spent(budget)
    try:
        layout = Layout.plan(budget, rounds_ahead, planner.pages(budget), kept)
    except UsageError as error:
        raise UsageError(
            f"{error.message}. Free after the weights: {memory.free:,} bytes of "
            f"{memory.total:,}; state slots {spent.state:,}, workspace {spent.workspace:,}, "
            f"graphs {spent.graphs:,}, lanes {lanes:,}, headroom {HEADROOM:,}; a page is "
            f"{planner.sizes.page:,}.",
            hint=_mend(planner, numerics),
        ) from error
    return Capacity(
        layout,
        memory.free,
        HEADROOM,
        spent.workspace,
        spent.graphs,
        spent.state,
        planner.sizes.page,
    )


@dataclass(frozen=True, slots=True)
class _Spent:
    """Bytes of what does not grow with the context."""

    state: int
    workspace: int
    graphs: int


class _Planner:
    """What the pages of one start, or of a smaller one on the same device, can be."""

    def __init__(
        self,
        config: TextConfig,
        numerics: Numerics,
        free: int,
        rounds_ahead: int,
        graphs: int,
        lanes: int,
        budget: Budget,
        draft: DraftRoom,
    ) -> None:
        self.sizes = state_sizes(config, numerics, draft)
        self.budget = budget
        self._config = config
        self._draft = draft
        self._free = free
        self._rounds_ahead = rounds_ahead
        self._graphs_of_a_row = -(-graphs // budget.max_concurrency)
        self._lanes = lanes

    def spent(self, budget: Budget) -> _Spent:
        rows = budget.max_concurrency
        slots = (SLOTS_PER_SEQUENCE + self._rounds_ahead) * rows + (budget.extra_state_slots or 0)
        chunk = workspace_bytes(self._config, budget.prefill_chunk, self._draft.taps)
        room = RoundRoom(self._config, self._config.vocab_size, rows, self._draft)
        return _Spent(
            (slots + SCRATCH_SLOTS) * self.sizes.resident,
            # Rounds run outside of graphs too: before they are captured.
            max(chunk, room.passing(), room.listing()),
            rows * self._graphs_of_a_row * GRAPH_BYTES + room.pool(),
        )

    def kept(self) -> KeptRoom:
        """Room for kept contexts beside lanes that use all they can."""
        sizes, budget = self.sizes, self.budget
        rest = (self.pages(budget) - Layout.plan(budget).pages) * sizes.page
        return kept_room(budget, sizes.page, sizes.resident, rest)

    def pages(self, budget: Budget) -> int:
        """Pages in what is left."""
        spent = self.spent(budget)
        rest = self._free - HEADROOM - self._lanes - spent.state - spent.workspace - spent.graphs
        return max(0, rest) // max(1, self.sizes.page)

    def fits(self, budget: Budget) -> bool:
        """Whether one sequence of the full context, and a page for every row, have room."""
        least = max(-(-budget.max_context // PAGE_TOKENS), budget.max_concurrency)
        return self.pages(budget) >= least


def _mend(planner: _Planner, numerics: Numerics) -> str:
    """The options that alone would be enough, each with its largest value."""
    budget = planner.budget
    most = planner.pages(budget) * PAGE_TOKENS
    fewer = range(budget.max_concurrency - 1, 0, -1)
    halves = [budget.prefill_chunk >> place for place in range(1, 12)]
    ways = (
        ("--max-context", [(most, replace(budget, max_context=most))] if most else []),
        ("--max-concurrency", [(n, replace(budget, max_concurrency=n)) for n in fewer]),
        (
            "--prefill-chunk",
            [(n, replace(budget, prefill_chunk=n)) for n in halves if n >= PAGE_TOKENS],
        ),
    )
    flags = [
        f"{flag} {fitting[0]} or less"
        for flag, candidates in ways
        if (fitting := [value for value, smaller in candidates if planner.fits(smaller)])
    ]
    if not flags:
        return "free memory of the device, or convert the model with --weights fp8 or q4"
    smaller = "; --kv-dtype int8 or fp8 makes pages smaller" if numerics.kv_format == "bf16" else ""
    return f"give {', or '.join(flags)}{smaller}"


def workspace_bytes(config: TextConfig, chunk: int, taps: int = 0) -> int:
    """Bytes of intermediate tensors of one chunk, and fixed room for heads and scratch: partial
    sums of split attention are a few for each multiprocessor, whatever the chunk (``ops_triton``:
    17 MiB at 132)."""
    return chunk * layer_bytes(config, taps) + (256 << 20)
