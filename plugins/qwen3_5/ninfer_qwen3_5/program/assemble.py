"""Put a Program together from a loaded model, a budget and a device."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from ninfer_core.contract.instance import Budget
from ninfer_core.contract.resources import PAGE_TOKENS, ProgramLimits
from ninfer_core.ops.backend import Prepare
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.drafting import NO_DRAFTS, Drafter, Drafting
from ninfer_qwen3_5.program.drawn_drafts import DraftLaws
from ninfer_qwen3_5.program.eager import EagerUnits
from ninfer_qwen3_5.program.executor import Executor
from ninfer_qwen3_5.program.host_tier import HostTier, open_host_tier
from ninfer_qwen3_5.program.kept_room import kept_room
from ninfer_qwen3_5.program.layout import (
    SCRATCH_SLOTS,
    Layout,
    Numerics,
    StateBuilder,
    StateSizes,
    cache_bytes,
    state_sizes,
)
from ninfer_qwen3_5.program.program import TextProgram
from ninfer_qwen3_5.program.queued.assemble import build_queued
from ninfer_qwen3_5.program.sampler import Sampler
from ninfer_qwen3_5.program.scoring import TextScoring
from ninfer_qwen3_5.program.stores import Stores

if TYPE_CHECKING:
    from ninfer_core.device.base import Device

Memory = dict[str, int]


def generation_program(
    model: TextModel,
    budget: Budget,
    device: Device,
    numerics: Numerics | None = None,
    held: ExitStack | None = None,
    prepare: Prepare | None = None,
    drafting: Drafting | None = None,
) -> tuple[TextProgram, Memory]:
    """The Program for serving, and the bytes it holds by purpose.

    With ``held`` units are queued: rounds are captured graphs, and the stack, on which the thread
    has entered the compute lane, closes with the Program. Without it they run when asked.
    ``prepare`` makes ready the kernels of queued units before the first of them runs.
    """
    numerics = numerics or Numerics()
    if held is None:
        return _eager_program(model, budget, device, numerics, drafting)
    queued = build_queued(model, budget, device, numerics, held, prepare, drafting)
    memory = queued.memory | {"weights": weight_bytes(model)}
    _note_drafter(memory, drafting, queued.layout, numerics)
    if drafting is not None and drafting.costs is None:
        drafting = replace(drafting, costs=queued.draft_costs)
    limits = _limits(model, budget, queued.units.rounds_ahead, drafting)
    sizes = state_sizes(model.config, numerics, NO_DRAFTS if drafting is None else drafting.room)
    host = _host_tier(model, queued.state, queued.stores, queued.layout, device, sizes, memory)
    program = TextProgram(
        limits, queued.stores, queued.state, queued.units, memory, budget.keep_checkpoints, host
    )
    return program, memory


def _eager_program(
    model: TextModel,
    budget: Budget,
    device: Device,
    numerics: Numerics,
    drafting: Drafting | None,
) -> tuple[TextProgram, Memory]:
    import torch

    room = NO_DRAFTS if drafting is None else drafting.room
    sizes = state_sizes(model.config, numerics, room)
    layout = _layout(budget, sizes, device.memory().free)
    state, arenas = StateBuilder(model.config, layout, device, numerics, room).build()
    memory = {name: arena.capacity for name, arena in arenas.items()}
    memory["weights"] = weight_bytes(model)
    _note_drafter(memory, drafting, layout, numerics)
    drafter = None if drafting is None else Drafter(drafting, model, state, _laws(drafting, layout))
    tables = torch.full((layout.rows, layout.pages_per_sequence), -1, dtype=torch.int32)
    units = EagerUnits(
        Executor(model, state, tables, drafter),
        Sampler(model.ops, layout.rows, model.config.vocab_size, model.addressable),
    )
    stores = Stores(layout, tables, sizes.page, sizes.slot, budget.host_bytes)
    limits, keeps = _limits(model, budget, 0, drafting), budget.keep_checkpoints
    host = _host_tier(model, state, stores, layout, device, sizes, memory)
    return TextProgram(limits, stores, state, units, memory, keeps, host), memory


def _layout(budget: Budget, sizes: StateSizes, free: int) -> Layout:
    """For lanes that use all they can, and kept contexts in some of the rest of ``free`` bytes."""
    lanes = Layout.plan(budget)
    spent = lanes.pages * sizes.page + (lanes.slots + SCRATCH_SLOTS) * sizes.resident
    kept = kept_room(budget, sizes.page, sizes.resident, free - spent)
    return Layout.plan(budget, kept=kept)


def _host_tier(
    model: TextModel,
    state: ModelState,
    stores: Stores,
    layout: Layout,
    device: Device,
    sizes: StateSizes,
    memory: Memory,
) -> HostTier | None:
    """The host tier that the stores count on, its bytes noted in ``memory``."""
    host = open_host_tier(model.ops, state, device, stores, sizes, layout.pages_per_sequence)
    if host is not None:
        memory["host_tier"] = stores.context.arena.capacity
    return host


def _limits(
    model: TextModel, budget: Budget, rounds_ahead: int, drafting: Drafting | None
) -> ProgramLimits:
    return ProgramLimits(
        max_context=budget.max_context,
        max_concurrency=budget.max_concurrency,
        prefill_chunk=budget.prefill_chunk,
        vocab_rows=model.config.vocab_size,
        draft_tokens=0 if drafting is None else drafting.tokens,
        draft_costs=None if drafting is None else drafting.costs,
        rounds_ahead=rounds_ahead,
    )


def _laws(drafting: Drafting, layout: Layout) -> DraftLaws | None:
    """Room for the laws of drafts that are drawn."""
    import torch

    if not drafting.draws:
        return None
    return DraftLaws(
        layout.rows, drafting.tokens, lambda _, shape, dtype: torch.empty(shape, dtype=dtype)
    )


def _note_drafter(
    memory: Memory, drafting: Drafting | None, layout: Layout, numerics: Numerics
) -> None:
    """Tell what the drafter holds apart from what the target does."""
    if drafting is None:
        return
    page = sum(cache_bytes(cache, numerics) for cache in drafting.room.caches)
    memory["kv"] -= page * layout.pages
    memory |= {"draft_weights": drafting.weights, "draft_kv": page * layout.pages}


def scoring_program(
    model: TextModel,
    budget: Budget,
    device: Device,
    numerics: Numerics | None = None,
    held: ExitStack | None = None,
) -> tuple[TextScoring, Memory]:
    """The Program for offline scoring: one sequence, nothing shared. ``held`` as for serving."""
    pages = -(-budget.max_context // PAGE_TOKENS)
    layout = Layout(pages=pages, pages_per_sequence=pages, slots=1, rows=1)
    state, arenas = StateBuilder(model.config, layout, device, numerics).build()
    memory = {name: arena.capacity for name, arena in arenas.items()}
    memory["weights"] = weight_bytes(model)
    scoring = TextScoring(
        model, state, budget.max_context, budget.prefill_chunk, pages, device, held
    )
    return scoring, memory


def weight_bytes(model: TextModel) -> int:
    """Bytes of the resident weight matrices, shared ones counted once."""
    parameters = model.parameters
    matrices = [parameters.embedding, parameters.head]
    for layer in parameters.layers:
        matrices += [layer.mixer.inputs, layer.mixer.output, layer.mlp.inputs, layer.mlp.output]
    planes = {plane.data_ptr(): plane for m in matrices for plane in m.planes.values()}
    return sum(plane.numel() * plane.element_size() for plane in planes.values())
