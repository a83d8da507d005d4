"""Put a Program together from a loaded model, a budget and a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.contract.instance import Budget
from ninfer_core.contract.resources import PAGE_TOKENS, ProgramLimits
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.eager import EagerUnits
from ninfer_qwen3_5.program.executor import Executor
from ninfer_qwen3_5.program.layout import Layout, StateBuilder
from ninfer_qwen3_5.program.program import TextProgram
from ninfer_qwen3_5.program.sampler import Sampler
from ninfer_qwen3_5.program.scoring import TextScoring
from ninfer_qwen3_5.program.stores import Stores

if TYPE_CHECKING:
    from ninfer_core.device.base import Device

Memory = dict[str, int]


def generation_program(
    model: TextModel, budget: Budget, device: Device
) -> tuple[TextProgram, Memory]:
    """The Program for serving, and the bytes it holds by purpose."""
    import torch

    layout = Layout.plan(budget)
    state, arenas = StateBuilder(model.config, layout, device).build()
    memory = {name: arena.capacity for name, arena in arenas.items()}
    memory["weights"] = weight_bytes(model)
    tables = torch.full((layout.rows, layout.pages_per_sequence), -1, dtype=torch.int32)
    page_bytes, slot_bytes = memory["kv"] // layout.pages, memory["state"] // layout.slots
    program = TextProgram(
        ProgramLimits(
            max_context=budget.max_context,
            max_concurrency=budget.max_concurrency,
            prefill_chunk=budget.prefill_chunk,
            vocab_rows=model.config.vocab_size,
        ),
        Stores(layout, tables, page_bytes, slot_bytes),
        state,
        EagerUnits(
            Executor(model, state, tables),
            Sampler(model.ops, layout.rows, model.config.vocab_size, model.addressable),
        ),
        memory,
    )
    return program, memory


def scoring_program(model: TextModel, budget: Budget, device: Device) -> tuple[TextScoring, Memory]:
    """The Program for offline scoring: one sequence, nothing shared."""
    pages = -(-budget.max_context // PAGE_TOKENS)
    layout = Layout(pages=pages, pages_per_sequence=pages, slots=1, rows=1)
    state, arenas = StateBuilder(model.config, layout, device).build()
    memory = {name: arena.capacity for name, arena in arenas.items()}
    memory["weights"] = weight_bytes(model)
    scoring = TextScoring(model, state, budget.max_context, budget.prefill_chunk, pages)
    return scoring, memory


def weight_bytes(model: TextModel) -> int:
    """Bytes of the resident weight matrices, shared ones counted once."""
    parameters = model.parameters
    matrices = [parameters.embedding, parameters.head]
    for layer in parameters.layers:
        matrices += [layer.mixer.inputs, layer.mixer.output, layer.mlp.inputs, layer.mlp.output]
    planes = {plane.data_ptr(): plane for m in matrices for plane in m.planes.values()}
    return sum(plane.numel() * plane.element_size() for plane in planes.values())
