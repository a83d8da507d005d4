"""What a consumer receives: one start, deltas, one end."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ninfer_core.contract.errors import RequestError
from ninfer_core.contract.reuse import RestoreKind, Tier
from ninfer_core.contract.reuse import ReuseReason as ReuseReason
from ninfer_core.contract.row_values import row_value
from ninfer_core.contract.sampling import TokenLogprobs


class Channel(enum.Enum):
    """What a piece of output is: thought, answer, or a call of a tool. Members are single, so that
    their identity is a hash that costs nothing."""

    __hash__ = object.__hash__

    REASONING = "reasoning"
    CONTENT = "content"
    TOOL_CALL = "tool_call"


class FinishReason(enum.Enum):
    """Why an output ended."""

    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    TOOL_CALLS = "tool_calls"
    OUTPUT_LIMIT = "output_limit"
    CONTEXT_CAPACITY = "context_capacity"
    CANCELLED = "cancelled"

    @property
    def natural(self) -> bool:
        """Whether the model ended by itself, so that tool calls are whole."""
        return self in _NATURAL


_NATURAL = frozenset({FinishReason.STOP_TOKEN, FinishReason.STOP_STRING, FinishReason.TOOL_CALLS})


@dataclass(frozen=True, slots=True)
class GenerationStart:
    """Published once, when admission is committed and before any delta.

    ``notes`` are plain sentences about what was changed on the way (a clamped output limit).
    ``reuse_point`` and ``reuse_tier`` say which kind of restore point the ``reused_tokens`` came
    from and where it lay; None where nothing was reused. ``restored_bytes`` were moved for that.
    """

    prompt_tokens: int
    reused_tokens: int
    reuse_reason: ReuseReason
    notes: tuple[str, ...] = ()
    reuse_point: RestoreKind | None = None
    reuse_tier: Tier | None = None
    restored_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptProgress:
    """How far the prompt is read: ``done`` of ``total`` tokens, ``cached`` of them reused.

    Published after every chunk of a prompt, before any delta, to a streaming consumer that asked
    for it (``GenerationOptions.progress``).
    """

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDelta:
    """A piece of call ``index``: ``id`` and ``name`` once, then JSON ``arguments`` fragments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@row_value
class Delta:
    """Committed output of one channel. ``text`` never holds half a character.

    ``token_ids`` and ``logprobs`` belong to the tokens that this delta accounts for; a token whose
    text is held back is accounted for when it commits, so counts may lead the text.
    """

    channel: Channel
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    tool: ToolDelta | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One whole call; ``arguments`` is a JSON object as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts; ``completion_tokens`` includes stop and forced tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time of one request went. Seconds, except counts.

    ``reuse_reason``, ``reuse_point`` and ``reuse_tier`` say why ``cached_tokens`` has its value, as
    in :class:`GenerationStart`; ``restored_bytes`` were moved for that and to resume, ``captures``
    counts the restore points that the request left while its prompt was read.
    """

    queue: float = 0.0
    prepare: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    host: float = 0.0
    device: float = 0.0
    rounds: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    pauses: int = 0
    replays: int = 0
    restores: int = 0
    restored_bytes: int = 0
    cached_tokens: int = 0
    reuse_reason: ReuseReason = ReuseReason.DISABLED
    reuse_point: RestoreKind | None = None
    reuse_tier: Tier | None = None
    captures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """Everything that was committed for one request."""

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    stop_match: str | int | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Finished:
    """The request ended with a result; a cancelled one with what it had produced."""

    result: GenerationResult


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended without a result. ``partial`` is what had been committed before."""

    error: RequestError
    partial: GenerationResult | None = None


GenerationEvent = GenerationStart | PromptProgress | Delta | Finished | Failed
