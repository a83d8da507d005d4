"""Everything the engine knows of one request."""

from __future__ import annotations

from dataclasses import dataclass, field

from ninfer_core.contract.checkpoints import OutputRules, ResumeState
from ninfer_core.contract.errors import DeadlineExceeded, RequestError
from ninfer_core.contract.events import FinishReason
from ninfer_core.contract.frontend import OutputSession, PreparedPrompt, RestorePoint
from ninfer_core.contract.requests import ConsumerMode, GenerationOptions
from ninfer_core.contract.resources import CheckpointRef, SequenceHandle
from ninfer_core.contract.reuse import RestoreKind, ReuseReason, Tier
from ninfer_core.contract.sampling import SamplingParams, TokenLogprobs
from ninfer_core.engine.catalogue import Continuation
from ninfer_core.engine.response import Response
from ninfer_core.engine.states import RequestState
from ninfer_core.engine.token_path import TokenPath

Ending = FinishReason | RequestError
"""Why a request ends: with a result, or with an error."""


@dataclass(slots=True)
class Stopwatch:
    """Raw times and counts of one request; seconds of the engine's clock."""

    submitted: float
    prepared: float
    bound: float | None = None
    first_token: float | None = None
    ended: float | None = None
    device: float = 0.0
    rounds: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    pauses: int = 0
    replays: int = 0
    restores: int = 0
    restored_bytes: int = 0
    cached_tokens: int = 0
    reuse_reason: ReuseReason = ReuseReason.DISABLED
    reuse_point: RestoreKind | None = None
    reuse_tier: Tier | None = None
    captures: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class RequestRecord:
    """One request. Built by the submitting thread, from then on changed by the worker alone,
    except for ``cancel_requested``, which any thread may set.

    ``limit_reason`` is the finish that reaching ``rules.max_new_tokens`` means; ``immediate``
    requests need no model; ``forced`` are tokens that the next control unit must append;
    ``blocked`` says that the last asked permit was refused, ``permitted`` that one is held now;
    ``flying`` is how many tokens the launched units with this row may produce at most, 0 when it is
    in none; ``held_back`` rows are not launched ahead, so that they can be paused;
    ``capture`` is the restore point at which it stands and may be captured, in no unit until that
    is settled; ``path`` and ``owner`` are its prompt and its continuation for the cache, ``wanted``
    the source it would rather start from; ``doomed`` is an end that waits for a stable boundary,
    ``ending`` the end that came.
    """

    request_id: str
    prepared: PreparedPrompt
    options: GenerationOptions
    sampling: SamplingParams
    rules: OutputRules
    limit_reason: FinishReason
    session: OutputSession
    response: Response
    watch: Stopwatch
    notes: tuple[str, ...] = ()
    queue_deadline: float | None = None
    deadline: float | None = None
    immediate: bool = False
    cancel_requested: bool = False

    ticket: int = 0
    state: RequestState = RequestState.WAITING
    lane: int | None = None
    sequence: SequenceHandle | None = None
    resume: ResumeState | None = None
    before_pause: RequestState | None = None
    doomed: Ending | None = None
    ending: Ending | None = None
    stop_match: str | int | None = None
    started: bool = False
    blocked: bool = False
    permitted: bool = False
    flying: int = 0
    held_back: bool = False
    bypassed: int = 0
    bind_aborts: int = 0
    pause_aborts: int = 0
    refused_sources: set[CheckpointRef] = field(default_factory=set)
    capture: RestorePoint | None = None
    path: TokenPath | None = None
    owner: Continuation | None = None
    wanted: CheckpointRef | None = None
    forced: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    scored: list[TokenLogprobs] = field(default_factory=list)
    streaming: bool = field(init=False)

    def __post_init__(self) -> None:
        self.streaming = self.options.consumer is ConsumerMode.STREAMING

    @property
    def prompt_tokens(self) -> int:
        return self.prepared.length

    @property
    def remaining(self) -> int:
        """Tokens that may still be accepted."""
        return self.rules.max_new_tokens - len(self.tokens)

    def asked_to_stop(self, now: float) -> Ending | None:
        """The end that somebody, or the request's own deadline, imposes by now, if any."""
        if self.doomed is not None:
            return self.doomed
        if self.cancel_requested:
            return FinishReason.CANCELLED
        if self.deadline is not None and now >= self.deadline:
            return DeadlineExceeded(
                f"the request ran past its deadline of {self.options.deadline} s",
                param="deadline",
            )
        return None

    def held_sequence(self) -> SequenceHandle:
        """The resident sequence; asking for it in another state is a defect of the engine."""
        assert self.sequence is not None
        return self.sequence
