"""The builder of this architecture: artifact and devices in, a runnable instance out."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_core.contract.frontend import Frontend
from ninfer_core.contract.instance import BuildRequest, FrontendRequest, Purpose
from ninfer_core.contract.program import Program, ScoringProgram
from ninfer_core.contract.resources import PAGE_TOKENS, ProgramLimits
from ninfer_core.errors import NinferError
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.frontend import open_frontend
from ninfer_qwen3_5.load.text import load_text
from ninfer_qwen3_5.model.state import ModelState
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.executor import Executor
from ninfer_qwen3_5.program.layout import Layout, StateBuilder
from ninfer_qwen3_5.program.program import TextProgram
from ninfer_qwen3_5.program.sampler import Sampler
from ninfer_qwen3_5.program.scoring import TextScoring
from ninfer_qwen3_5.program.stores import Stores


class Qwen35Instance:
    """Model, parameters, frontend and program of one start (contract: ``ModelInstance``)."""

    def __init__(
        self,
        name: str,
        frontend: Frontend,
        program: Program | ScoringProgram,
        memory: Mapping[str, int],
    ) -> None:
        self._name = name
        self._frontend = frontend
        self._program = program
        self._memory = dict(memory)

    @property
    def name(self) -> str:
        return self._name

    @property
    def frontend(self) -> Frontend:
        return self._frontend

    @property
    def program(self) -> Program | ScoringProgram:
        return self._program

    def memory(self) -> Mapping[str, int]:
        return self._memory

    def close(self) -> None:
        self._program.close()


def build_instance(request: BuildRequest) -> Qwen35Instance:
    """Load weights, plan the stores and assemble the Program.

    Raises ArtifactError for a file that does not hold this architecture whole, NinferError for a
    feature that this version does not run or a budget that does not fit.
    """
    _refuse_features(request)
    config = TextConfig.from_json(request.artifact.component("text").config)
    frontend = _frontend(request)
    parameters = load_text(request.artifact, config, request.ops)
    model = TextModel(config, parameters, request.ops, frontend.vocab_size)
    if request.purpose is Purpose.CAUSAL_SCORING:
        return _scoring(request, config, model, frontend)
    return _generation(request, config, model, frontend)


def _refuse_features(request: BuildRequest) -> None:
    if request.features.vision or request.features.draft is not None:
        asked = "vision" if request.features.vision else f"draft {request.features.draft!r}"
        raise NinferError(f"{asked} is not run by ninfer-qwen3_5 in this version")
    if request.budget.kv_format not in (None, "fp32"):
        raise NinferError(
            f"kv_format {request.budget.kv_format!r} is not served on this device",
            hint="leave --kv-dtype out",
        )
    if len(request.devices) != 1:
        raise NinferError(
            f"{len(request.devices)} devices were given; this version runs on one",
            hint="name one device with --device",
        )


def _frontend(request: BuildRequest) -> Frontend:
    return open_frontend(
        FrontendRequest(
            artifact=request.artifact,
            max_context=request.budget.max_context,
            grammar_compiler=request.grammar_compiler,
            options=request.frontend_options,
        )
    )


def _generation(
    request: BuildRequest, config: TextConfig, model: TextModel, frontend: Frontend
) -> Qwen35Instance:
    import torch

    layout = Layout.plan(request.budget)
    state, arenas = StateBuilder(config, layout, request.devices[0]).build()
    tables = torch.full((layout.rows, layout.pages_per_sequence), -1, dtype=torch.int32)
    memory = {**{name: arena.capacity for name, arena in arenas.items()}}
    memory["weights"] = weight_bytes(model)
    stores = Stores(
        layout, tables, memory["kv"] // layout.pages, memory["state"] // layout.slots
    )
    sampler = Sampler(model.ops, layout.rows, config.vocab_size, frontend.vocab_size)
    limits = ProgramLimits(
        max_context=request.budget.max_context,
        max_concurrency=request.budget.max_concurrency,
        prefill_chunk=request.budget.prefill_chunk,
        vocab_rows=config.vocab_size,
    )
    executor = Executor(model, state, tables)
    program = TextProgram(limits, stores, state, executor, sampler, memory)
    return Qwen35Instance(request.artifact.name, frontend, program, memory)


def _scoring(
    request: BuildRequest, config: TextConfig, model: TextModel, frontend: Frontend
) -> Qwen35Instance:
    pages = -(-request.budget.max_context // PAGE_TOKENS)
    layout = Layout(pages=pages, pages_per_sequence=pages, slots=1, rows=1)
    state: ModelState
    state, arenas = StateBuilder(config, layout, request.devices[0]).build()
    memory = {name: arena.capacity for name, arena in arenas.items()}
    memory["weights"] = weight_bytes(model)
    program = TextScoring(
        model, state, request.budget.max_context, request.budget.prefill_chunk, pages
    )
    return Qwen35Instance(request.artifact.name, frontend, program, memory)


def weight_bytes(model: TextModel) -> int:
    """Bytes of the resident weight matrices, shared ones counted once."""
    parameters = model.parameters
    matrices = [parameters.embedding, parameters.head]
    for layer in parameters.layers:
        matrices += [layer.mixer.inputs, layer.mixer.output, layer.mlp.inputs, layer.mlp.output]
    planes = {plane.data_ptr(): plane for m in matrices for plane in m.planes.values()}
    return sum(plane.numel() * plane.element_size() for plane in planes.values())
