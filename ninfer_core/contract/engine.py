"""The public engine, the same in process and behind a pipe."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ninfer_core.contract.events import GenerationEvent, GenerationResult
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.instance import Purpose
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams

MAX_CONCURRENCY = 8

A16 = "a16"
ACTIVATIONS = ("auto", A16)
"""How wide activations may be: as the artifact permits and the device gains, or 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Everything fixed at start.

    ``devices`` are specs such as ``auto``, ``cpu``, ``cuda:0``; ``plugins`` names requested active
    plug-ins, ``disabled_plugins`` those left out. ``max_context``, ``prefill_chunk`` and
    ``kv_tokens`` count tokens; where None is allowed the model or the planner decides.
    ``kv_format``, ``draft``, ``cache_policy`` and ``grammar_backend`` name entries of plug-ins;
    ``cache_policy`` ``off`` keeps no contexts; ``extra_state_slots`` are for kept ones, None lets
    the planner choose. ``draft`` None is the only one that a named plug-in offers, if any;
    ``draft_tokens`` is K, 0 the default's; ``draft_sampling`` draws drafts at each request's
    temperature, which leaves the law of answers and not the text that a seed gives.
    ``queue_timeout`` in seconds; ``max_pending``
    requests may wait beyond the resident ones; ``chat_template`` overrides the artifact's own.
    ``warm_up`` answers a few requests before the engine is ready; None does so on every device but
    the CPU. ``max_gap_ms`` bounds how long a stream waits for its next token while a prompt is read
    beside it: times measured at start fix the chunk, at most ``prefill_chunk``, for good.
    ``load_grammars`` loads the library of the grammar backend at start; None does so in an engine
    that has a process of its own. ``schema_instruction`` puts the wanted form of an answer before
    its conversation, as an instruction. ``activations`` is one of ACTIVATIONS.
    """

    purpose: Purpose = Purpose.GENERATION
    devices: tuple[str, ...] = ("auto",)
    plugins: tuple[str, ...] = ()
    disabled_plugins: tuple[str, ...] = ()
    max_context: int | None = None
    max_concurrency: int = 1
    max_pending: int = 16
    queue_timeout: float | None = 30.0
    prefill_chunk: int = 1024
    max_gap_ms: float | None = None
    kv_tokens: int | None = None
    kv_format: str | None = None
    activations: str = "auto"
    draft: str | None = None
    draft_tokens: int = 0
    draft_sampling: bool = False
    vision: bool = False
    cache_policy: str = "reuse"
    extra_state_slots: int | None = None
    host_bytes: int | None = None
    chat_template: Path | None = None
    grammar_backend: str | None = None
    load_grammars: bool | None = None
    schema_instruction: bool = False
    warm_up: bool | None = None


class AvailabilityState(enum.Enum):
    """The life of an engine; only a READY one accepts requests."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Availability:
    """The present state; ``reason`` says why it is not READY."""

    state: AvailabilityState
    reason: str | None = None

    @property
    def ready(self) -> bool:
        return self.state is AvailabilityState.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """One device: bytes of its memory in all and free, and how many arenas, parts of arenas, graphs
    and allocations beside the arenas were ever made. Steady serving leaves the counts alone."""

    name: str
    model: str
    total: int
    free: int
    arenas: int
    takes: int
    graphs: int
    allocations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySummary:
    """Bytes by purpose, page and slot totals with what is free, and the devices they are on.

    ``kept_slots`` and ``kept_pages`` are those of the totals that were added for kept contexts.
    """

    bytes: Mapping[str, int]
    pages_total: Mapping[str, int]
    pages_free: Mapping[str, int]
    state_slots_total: int
    state_slots_free: int
    kept_slots: int = 0
    kept_pages: int = 0
    devices: tuple[DeviceUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """What was opened: public name, architecture, formats, plug-ins and start-up seconds.

    ``seconds`` count from the call to a ready engine, ``warm_up_seconds`` are those of them that
    the warm-up took. ``memory`` is what the engine held when it was ready.
    """

    name: str
    architecture: str
    source: str
    devices: tuple[str, ...]
    max_context: int
    max_concurrency: int
    prefill_chunk: int
    vocab_size: int
    default_sampling: SamplingParams
    seconds: float
    warm_up_seconds: float = 0.0
    memory: MemorySummary | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Monotone counters since start, and the present numbers of requests by place.

    ``reuse`` counts admissions by the reason of their cached tokens; ``captures`` and ``kept_ends``
    are the checkpoints left by prompts and by outputs, ``reclaimed`` those given up for room, and
    ``checkpoints`` how many stand now; ``cache_drops`` counts how often all of them were dropped,
    because a record of one contradicted itself. ``restored_bytes`` were moved by adoptions and
    resumes; ``reuse_tiers`` counts adoptions by where the point lay, ``demotions`` the points that
    were copied to the host, ``demoted_bytes`` of them.
    """

    running: int = 0
    waiting: int = 0
    paused: int = 0
    outstanding: int = 0
    submitted: int = 0
    finished: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    prefill_chunks: int = 0
    decode_rounds: int = 0
    control_rounds: int = 0
    rows_by_batch: Mapping[int, int] = field(default_factory=dict)
    pauses: int = 0
    replays: int = 0
    restores: int = 0
    restored_bytes: int = 0
    reuse: Mapping[str, int] = field(default_factory=dict)
    captures: int = 0
    kept_ends: int = 0
    reclaimed: int = 0
    cache_drops: int = 0
    checkpoints: int = 0
    reuse_tiers: Mapping[str, int] = field(default_factory=dict)
    demotions: int = 0
    demoted_bytes: int = 0


class GenerationHandle(Protocol):
    """One submitted request.

    Iterate for events, or call :meth:`result`; leaving the context, or dropping the handle,
    abandons the request. Thread safe for one consumer beside any number of cancellers.
    """

    @property
    def request_id(self) -> str: ...

    def __iter__(self) -> Iterator[GenerationEvent]: ...

    def next_event(self, timeout: float | None = None) -> GenerationEvent | None:
        """The next event; None after the last. Raises TimeoutError when none came in time."""
        ...

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called whenever ``next_event(0)`` may have something, and at once when it
        has. From a thread of the engine: it must neither block nor raise. One subscriber."""
        ...

    def result(self, timeout: float | None = None) -> GenerationResult:
        """Wait for the end. Raises the request's error, or EngineFailure when the engine died."""
        ...

    def cancel(self) -> None: ...

    def close(self) -> None:
        """Stop consuming: cancels if still running. Idempotent."""
        ...


class EngineLike(Protocol):
    """What gateways see of an engine. Thread safe."""

    def prepare(self, prompt: PromptInput) -> PreparedPrompt:
        """Render, tokenise and check. Raises what ``Frontend.prepare`` raises."""
        ...

    def submit(
        self, prompt: PromptInput | PreparedPrompt, options: GenerationOptions = ...
    ) -> GenerationHandle:
        """Queue a request. Raises Overloaded, Unavailable and whatever ``prepare`` raises."""
        ...

    def count_tokens(self, prompt: PromptInput) -> int:
        """Length of the prepared prompt. Raises what ``prepare`` raises."""
        ...

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of ``text``; ``special`` recognises special-token spellings inside it."""
        ...

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``. Raises InvalidRequest for an id outside the vocabulary."""
        ...

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """The exact bytes of each token. Raises InvalidRequest as ``detokenize`` does."""
        ...

    def score(self, token_ids: Sequence[int], first_target: int = 1) -> list[float]:
        """log p of ``token_ids[i]`` given all before it, for every ``i >= first_target >= 1``.

        Raises Unsupported unless the engine's purpose is ``CAUSAL_SCORING``.
        """
        ...

    def availability(self) -> Availability: ...

    def load_summary(self) -> LoadSummary: ...

    def memory_summary(self) -> MemorySummary: ...

    def stats(self) -> EngineStats: ...

    def drain(self, deadline: float | None = None) -> bool:
        """Refuse new work and wait up to ``deadline`` seconds; True when nothing is left."""
        ...

    def close(self) -> None: ...
