"""The builder of this architecture: artifact and devices in, a runnable instance out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ninfer_core.contract.frontend import Frontend
from ninfer_core.contract.instance import BuildRequest, FrontendRequest, Purpose
from ninfer_core.contract.program import Program, ScoringProgram
from ninfer_core.device.base import LaneRole
from ninfer_core.errors import UsageError
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.frontend import open_frontend
from ninfer_qwen3_5.load.weights import Weights
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.assemble import generation_program, scoring_program
from ninfer_qwen3_5.program.drafting import Drafting
from ninfer_qwen3_5.program.layout import Numerics

if TYPE_CHECKING:
    from ninfer_core.device.base import Device


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
        try:
            self._frontend.close()
        finally:
            self._program.close()


def build_instance(request: BuildRequest) -> Qwen35Instance:
    """Load weights, plan the stores and assemble the Program.

    Raises ArtifactError for a file that does not hold this architecture whole, UsageError for a
    feature that this version does not run, NinferError for a budget that does not fit.
    """
    _refuse_features(request)
    config = TextConfig.from_json(request.artifact.component("text").config)
    frontend = _frontend(request)
    device = request.devices[0]
    numerics = choose_numerics(device, request.budget.kv_format)
    with ExitStack() as opening:
        held = _entered(device, opening)
        weights = Weights(request, config, device)
        model = TextModel(config, weights.text(), request.ops, frontend.vocab_size)
        drafting = weights.drafting(model)
        program, memory = _program(request, model, device, numerics, held, drafting)
        opening.pop_all()
    return Qwen35Instance(request.artifact.name, frontend, program, memory)


def _program(
    request: BuildRequest,
    model: TextModel,
    device: Device,
    numerics: Numerics,
    held: ExitStack | None,
    drafting: Drafting | None,
) -> tuple[Program | ScoringProgram, Mapping[str, int]]:
    if request.purpose is Purpose.CAUSAL_SCORING:
        return scoring_program(model, request.budget, device, numerics, held)
    return generation_program(
        model, request.budget, device, numerics, held, request.prepare_ops, drafting
    )


def choose_numerics(device: Device, kv_format: str | None) -> Numerics:
    """fp32 on the CPU, bf16 elsewhere with the cache format asked for. Raises UsageError."""
    on_cpu = device.facts.kind == "cpu"
    activation = "float32" if on_cpu else "bfloat16"
    offered = ("fp32",) if on_cpu else ("bf16", "int8", "fp8")
    if kv_format not in (None, *offered):
        raise UsageError(
            f"kv_format {kv_format!r} is not served on {device.name}",
            hint=f"give --kv-dtype {' or '.join(offered)}, or leave it out",
        )
    return Numerics(activation, kv_format or offered[0])


def _entered(device: Device, opening: ExitStack) -> ExitStack | None:
    """The compute lane, entered by this thread until the Program closes; none on the CPU, whose
    units run when they are asked."""
    if device.facts.kind == "cpu":
        return None
    held = opening.enter_context(ExitStack())
    held.enter_context(device.lane(LaneRole.COMPUTE).enter())
    return held


def _refuse_features(request: BuildRequest) -> None:
    if request.features.vision:
        raise UsageError(
            "vision is not run by ninfer-qwen3_5 in this version", hint="leave vision out"
        )
    if len(request.devices) != 1:
        raise UsageError(
            f"{len(request.devices)} devices were given; this version runs on one",
            hint="name one device with --device",
        )


def _frontend(request: BuildRequest) -> Frontend:
    return open_frontend(
        FrontendRequest(
            artifact=request.artifact,
            max_context=request.budget.max_context,
            grammar_backend=request.grammar_backend,
            options=request.frontend_options,
        )
    )
