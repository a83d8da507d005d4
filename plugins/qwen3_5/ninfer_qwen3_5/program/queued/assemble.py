"""Put together the units of a device with a queue, and warm and capture them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.contract.draft_costs import DraftCosts
from ninfer_core.contract.instance import Budget
from ninfer_core.device.base import LaneRole
from ninfer_core.device.flags import set_timer_slack
from ninfer_core.ops.backend import Prepare
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.drafting import NO_DRAFTS, Drafter, Drafting
from ninfer_qwen3_5.program.drawn_drafts import DraftLaws
from ninfer_qwen3_5.program.layout import Layout, Numerics, StateBuilder, state_sizes
from ninfer_qwen3_5.program.queued.capacity import plan_capacity
from ninfer_qwen3_5.program.queued.chunks import ChunkRunner, feed_bytes
from ninfer_qwen3_5.program.queued.decode import RoundLauncher
from ninfer_qwen3_5.program.queued.draft_measure import DraftMeasure, measured
from ninfer_qwen3_5.program.queued.lanes import LaneSizes, LaneState
from ninfer_qwen3_5.program.queued.masks import MaskBlock, MaskRing
from ninfer_qwen3_5.program.queued.rehearsal import Rehearsal, rehearse
from ninfer_qwen3_5.program.queued.ring import HostRing
from ninfer_qwen3_5.program.queued.rounds import (
    Part,
    Rounds,
    logits_bytes,
    round_bytes,
    take_logits,
)
from ninfer_qwen3_5.program.queued.spec_inputs import SpecInputs
from ninfer_qwen3_5.program.queued.spec_launch import SpecLauncher
from ninfer_qwen3_5.program.queued.spec_rounds import SpecRounds
from ninfer_qwen3_5.program.queued.units import ROUNDS_AHEAD, QueuedUnits
from ninfer_qwen3_5.program.stores import Stores

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.device.base import Arena, Device, Lane

_RING_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Queued:
    """Everything that a Program on such a device is made of, and its bytes by purpose."""

    layout: Layout
    stores: Stores
    state: ModelState
    units: QueuedUnits
    memory: dict[str, int]
    draft_costs: DraftCosts | None = None


def build_queued(
    model: TextModel,
    budget: Budget,
    device: Device,
    numerics: Numerics,
    held: ExitStack,
    prepare: Prepare | None = None,
    drafting: Drafting | None = None,
) -> Queued:
    """Plan, allocate, prepare, warm up and capture. The calling thread, which will also wait for
    rounds, has entered the compute lane; it leaves it when ``held`` closes."""
    set_timer_slack()
    lane = device.lane(LaneRole.COMPUTE)
    lane.synchronize()
    sizes = LaneSizes(budget.max_concurrency, -(-budget.max_context // 64), model.config.vocab_size)
    tables_bytes = sizes.device_bytes() + round_bytes(sizes.lanes) + _RING_BYTES
    tables_bytes += feed_bytes(budget.prefill_chunk, sizes.pages)
    tables_bytes += MaskRing.device_bytes(sizes.lanes, sizes.vocab)
    head = model.parameters.head.rows
    room, width = (NO_DRAFTS, 1) if drafting is None else (drafting.room, drafting.room.rows)
    tables_bytes += logits_bytes(sizes.lanes * width, head)
    if drafting is not None:
        hidden_size = model.config.hidden_size if room.hidden else 0
        tables_bytes += spec_bytes(sizes.lanes, width, sizes.vocab, hidden_size)
        tables_bytes += DraftLaws.bytes(sizes.lanes, drafting.tokens) * drafting.draws
    capacity = plan_capacity(
        model.config,
        numerics,
        budget,
        device.memory(),
        rounds_ahead=ROUNDS_AHEAD,
        graphs=_graphs(budget.max_concurrency, drafting),
        lanes=tables_bytes,
        draft=room,
    )
    layout = capacity.layout
    state, arenas = StateBuilder(model.config, layout, device, numerics, room).build()
    arena = device.arena("tables", tables_bytes)
    drafter = None
    if drafting is not None:
        laws = DraftLaws(sizes.lanes, drafting.tokens, arena.take) if drafting.draws else None
        drafter = Drafter(drafting, model, state, laws)
    pinned = device.pinned("round", _pinned_bytes(sizes, budget, width))
    lanes = LaneState(sizes, layout.pages, device, arena, pinned)
    unit = state_sizes(model.config, numerics, room)
    stores = Stores(layout, lanes.host_tables, unit.page, unit.slot, budget.host_bytes)
    device.reserve_workspace(capacity.workspace)
    before = device.memory().free
    units, costs = _units(
        model, state, lanes, stores, device, arena, pinned, budget, held, prepare, drafter
    )
    memory = {name: owner.capacity for name, owner in arenas.items()}
    memory |= {
        "tables": tables_bytes,
        "workspace": capacity.workspace,
        "graphs": max(0, before - device.memory().free),
        "headroom": capacity.headroom,
        "pinned": pinned.capacity,
    }
    return Queued(layout, stores, state, units, memory, costs)


def _graphs(count: int, drafting: Drafting | None) -> int:
    """How many are captured."""
    graphs = count * len(Part)
    if drafting is not None:
        block = drafting.backend.block
        graphs += SpecRounds.graphs(count, drafting.room.rows, block=block)
    return graphs


def _units(
    model: TextModel,
    state: ModelState,
    lanes: LaneState,
    stores: Stores,
    device: Device,
    arena: Arena,
    pinned: Arena,
    budget: Budget,
    held: ExitStack,
    prepare: Prepare | None,
    drafter: Drafter | None,
) -> tuple[QueuedUnits, DraftCosts | None]:
    """The units, and what drafts cost on a device where time means something."""
    lane, count = device.lane(LaneRole.COMPUTE), budget.max_concurrency
    ring = HostRing(count, pinned, arena)
    masks = MaskRing(count, model.config.vocab_size, pinned, arena, lane)
    chunks = ChunkRunner(
        model, state, lanes, stores.tables, lane, pinned, arena, budget.prefill_chunk, drafter
    )
    width = 1 if drafter is None else drafter.tokens + 1
    logits = take_logits(arena, count * width, model.parameters.head.rows)
    rounds = Rounds(model, state, lanes, ring, masks.masks, arena, count, logits, drafter)
    launcher, speculation = None, None
    if drafter is not None:
        made = _speculation(
            model, state, lanes, stores, drafter, arena, pinned, count, logits, lane
        )
        launcher, speculation = made
    if prepare is not None:
        prepare(Rehearsal(model, lanes, chunks, rounds, masks.masks, budget, speculation))
    if speculation is not None:
        warm_up_speculation(speculation, lanes, state, stores.slots.scratch)
    warm_up(rounds, ring, lanes, state, count, scratch=stores.slots.scratch)
    lane.synchronize()
    if speculation is not None:
        speculation.capture(device, lane)
    rounds.capture(device, lane)
    plain = RoundLauncher(rounds, ring, lanes, stores.tables, masks, model.ops, lane)
    units = QueuedUnits(model, lanes, masks, chunks, plain, lane, held, launcher)
    if speculation is None or launcher is None or device.facts.kind == "cpu":
        return units, None
    scratch = stores.slots.scratch
    measure = DraftMeasure(rounds, ring, speculation, launcher.inputs, lane, scratch)
    return units, measured(measure, lanes, state)


def _speculation(
    model: TextModel,
    state: ModelState,
    lanes: LaneState,
    stores: Stores,
    drafter: Drafter,
    arena: Arena,
    pinned: Arena,
    count: int,
    logits: Tensor,
    lane: Lane,
) -> tuple[SpecLauncher, SpecRounds]:
    width, vocab = drafter.tokens + 1, model.config.vocab_size
    inputs = SpecInputs(count, width, arena, pinned)
    filled = MaskBlock.take(pinned, "masks.spec", count * width, vocab)
    masks = MaskBlock.take(arena, "masks.spec", count * width, vocab)
    rounds = SpecRounds(model, state, drafter, lanes, inputs, masks.masks, arena, count, logits)
    launcher = SpecLauncher(rounds, inputs, lanes, stores.tables, filled, masks, model.ops, lane)
    return launcher, rounds


def warm_up_speculation(
    rounds: SpecRounds, lanes: LaneState, state: ModelState, scratch: int
) -> None:
    """Run every body once, on page 0 and slot 0, and leave no trace that anybody reads."""
    lanes.tables.block_tables.zero_()
    for size in rounds.counts:
        rehearse(rounds, size)
    lanes.tables.block_tables.fill_(-1)
    state.clear_slot(0)
    state.clear_slot(scratch)


def spec_bytes(lanes: int, width: int, vocab: int, hidden_size: int) -> int:
    """An upper bound of what speculation takes of the device's tables."""
    masks = MaskRing.device_bytes(lanes * width, vocab)
    return SpecInputs.bytes(lanes, width) + SpecRounds.bytes(lanes, width, hidden_size) + masks


def warm_up(
    rounds: Rounds, ring: HostRing, lanes: LaneState, state: ModelState, count: int, scratch: int
) -> None:
    """Run every body once, on page 0 and from slot 0 into the scratch slot, and leave no trace.

    Whatever compiles or sets itself up at a first call does so here.
    """
    lanes.tables.block_tables.zero_()
    for size in range(1, count + 1):
        rows = [(lane, 0, 0, 0, scratch, 0) for lane in range(size)]
        for part in (Part.GREEDY, Part.DRAWN):
            ring.write(rows, [])
            rounds.run(size, part)
        ring.write(rows, [])
        rounds.run(size, Part.FINISH, rounds.run(size, Part.FORWARD).logits)
    lanes.tables.block_tables.fill_(-1)
    lanes.counts.generated.zero_()
    state.clear_slot(scratch)


def _pinned_bytes(sizes: LaneSizes, budget: Budget, width: int) -> int:
    masks = MaskRing.pinned_bytes(sizes.lanes, sizes.vocab)
    if width > 1:
        masks += MaskRing.device_bytes(sizes.lanes * width, sizes.vocab)
        masks += SpecInputs.pinned_bytes(sizes.lanes, width)
    return (
        sizes.pinned_bytes()
        + feed_bytes(budget.prefill_chunk, sizes.pages)
        + masks
        + 2 * _RING_BYTES
    )
