"""How an architecture plug-in turns an artifact into something that runs."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ninfer_core.contract.frontend import Frontend
from ninfer_core.contract.grammar import GrammarBackend
from ninfer_core.contract.program import Program, ScoringProgram

if TYPE_CHECKING:
    from ninfer_core.artifact import Artifact
    from ninfer_core.artifact.convert import ParameterSpec
    from ninfer_core.contract.speculation import DraftBackend
    from ninfer_core.device.base import Device


class Purpose(enum.Enum):
    """Fixed when the engine starts."""

    GENERATION = "generation"
    CAUSAL_SCORING = "causal_scoring"


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What to bind besides text: ``draft`` names a draft backend, None for plain decoding;
    ``draft_sampling`` draws drafts at the temperature of their request."""

    vision: bool = False
    draft: str | None = None
    draft_tokens: int = 0
    draft_sampling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Sizes fixed at start. ``kv_tokens`` and ``extra_state_slots`` None let the planner choose;
    bytes None is no limit.

    ``keep_checkpoints``: prompts are also split at their restore points, and ends can be kept."""

    max_context: int
    max_concurrency: int
    prefill_chunk: int
    kv_tokens: int | None = None
    kv_format: str | None = None
    extra_state_slots: int | None = 0
    host_bytes: int = 0
    device_bytes: int | None = None
    keep_checkpoints: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """Everything a builder may use. ``draft_parameters`` tells what the draft backend's component
    consists of, as its entry describes it; nothing where no entry does. ``ops`` is the frozen table
    of chosen op callables; ``prepare_ops`` makes ready what a rehearsal would call
    (``ninfer_core.ops.backend.Prepare``), None where a first call sets up nothing."""

    artifact: Artifact
    devices: tuple[Device, ...]
    ops: Any
    features: Features
    purpose: Purpose
    budget: Budget
    prepare_ops: Callable[[Callable[[], None]], None] | None = None
    draft_backend: DraftBackend | None = None
    draft_parameters: Callable[[], Sequence[ParameterSpec]] = tuple
    media_encoder: Any | None = None
    grammar_backend: GrammarBackend | None = None
    frontend_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendRequest:
    """Open the text side alone, as a gateway process does."""

    artifact: Artifact
    max_context: int
    grammar_backend: GrammarBackend | None = None
    media_frontend: Any | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class ModelInstance(Protocol):
    """Model, parameters, frontend and program of one start.

    ``close`` releases program, frontend, parameters and model in that order.
    """

    @property
    def name(self) -> str: ...

    @property
    def frontend(self) -> Frontend: ...

    @property
    def program(self) -> Program | ScoringProgram: ...

    def memory(self) -> Mapping[str, int]:
        """Bytes by purpose: weights, kv, state, workspace, graphs."""
        ...

    def close(self) -> None: ...


class ArchitectureBuilder(Protocol):
    """What ``ArchitectureEntry.build`` loads."""

    def __call__(self, request: BuildRequest) -> ModelInstance:
        """Runs on the engine worker thread. Raises NinferError with nothing left open."""
        ...


class FrontendOpener(Protocol):
    """What ``ArchitectureEntry.frontend`` loads."""

    def __call__(self, request: FrontendRequest) -> Frontend:
        """Reads no weights. Raises NinferError."""
        ...
