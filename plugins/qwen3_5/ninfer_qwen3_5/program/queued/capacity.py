"""What fits on a device beside the weights: slots, workspace, graphs, and pages from the rest."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_core.contract.instance import Budget
from ninfer_core.device.base import MemoryFacts
from ninfer_core.errors import UsageError
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.program.layout import (
    SCRATCH_SLOTS,
    SLOTS_PER_SEQUENCE,
    Layout,
    Numerics,
    state_sizes,
)

HEADROOM = 1 << 30
"""Bytes left free for what nobody plans: contexts of libraries, kernels, fragments."""

GRAPH_BYTES = 12 << 20
"""Bytes set aside for each captured graph; the start report says what they really took."""


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
) -> Capacity:
    """Turn what is free after the weights into pages; ``lanes`` is the bytes of per-lane tensors.

    Raises UsageError, with every number, when one sequence of the full context does not fit.
    """
    sizes = state_sizes(config, numerics)
    per_sequence = SLOTS_PER_SEQUENCE + rounds_ahead
    slots = per_sequence * budget.max_concurrency + budget.extra_state_slots + SCRATCH_SLOTS
    state = slots * sizes.slot
    workspace = workspace_bytes(config, budget.prefill_chunk)
    spent = HEADROOM + workspace + graphs * GRAPH_BYTES + lanes + state
    rest = memory.free - spent
    pages = max(0, rest) // max(1, sizes.page)
    try:
        layout = Layout.plan(budget, rounds_ahead, page_limit=pages)
    except UsageError as error:
        raise UsageError(
            f"{error} Free after the weights: {memory.free:,} bytes of {memory.total:,}; state "
            f"slots {state:,}, workspace {workspace:,}, graphs {graphs * GRAPH_BYTES:,}, lanes "
            f"{lanes:,}, headroom {HEADROOM:,}; a page is {sizes.page:,}.",
            hint="lower --max-context, --max-concurrency or --prefill-chunk, or choose "
            "--kv-dtype int8 or fp8",
        ) from error
    return Capacity(
        layout, memory.free, HEADROOM, workspace, graphs * GRAPH_BYTES, state, sizes.page
    )


def workspace_bytes(config: TextConfig, chunk: int) -> int:
    """Bytes of intermediate tensors of one chunk, counted generously: twice what its widest layer
    keeps at once, plus fixed room for heads and scratch."""
    values, heads = config.linear_value_dim, config.linear_num_value_heads
    attention = config.num_attention_heads * config.head_dim
    stacked = max(
        config.conv_channels + values + 2 * heads,
        2 * attention + 2 * config.num_key_value_heads * config.head_dim,
    )
    chunk_states = heads * config.linear_key_head_dim * config.linear_value_head_dim // 16
    per_token = 2 * (
        3 * stacked + 3 * config.intermediate_size + 4 * config.hidden_size + 4 * attention
    )
    per_token += 4 * 4 * values + chunk_states
    return 2 * chunk * per_token + (256 << 20)
