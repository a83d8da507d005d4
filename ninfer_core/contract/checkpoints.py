"""Restore points, pause and the context transactions that move them.

At most one context transaction is open at a time. A plan is sealed against the present state,
begun once, advanced at worker boundaries and ends in exactly one complete result, which the engine
adopts and never re-derives.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ninfer_core.contract.events import ReuseReason
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.resources import CheckpointRef, ResourceVector, SequenceHandle
from ninfer_core.contract.reuse import Tier as Tier
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.contract.single_use import SingleUse
from ninfer_core.contract.spans import ExecutedSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """What a checkpoint holds. ``frontier`` counts executed tokens; ``coverage`` tokens per pool;
    ``recovery_frontier`` is the deepest position that survives if this one is deleted. ``spans``
    says how the tokens ran: whoever goes on from here equals, to the bit, a run in these spans.
    ``restore_seconds`` is how long all of it takes from the host, by a rate measured at start; 0
    where none was."""

    frontier: int
    coverage: Mapping[str, int]
    replicas: frozenset[Tier]
    recovery_frontier: int
    footprint: ResourceVector
    spans: tuple[ExecutedSpan, ...] = ()
    restore_seconds: float = 0.0


class CheckpointAction(enum.Enum):
    """Drop one of two replicas, copy the device's to the host so that it can be dropped, or delete
    the checkpoint altogether."""

    DROP_DEVICE = "drop_device"
    DROP_HOST = "drop_host"
    DEMOTE = "demote"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class RestoreWork:
    """What adopting a source would cost: bytes and operations to move, tokens left to prefill.

    ``seconds`` is how long the moving takes by rates that the Program measured at start; 0 where it
    measured none."""

    bytes: int
    operations: int
    tokens: int
    seconds: float = 0.0


class ResumeKind(enum.Enum):
    """How a paused sequence comes back: from its kept state, or by executing its tokens again."""

    SNAPSHOT = "snapshot"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class ResumeState:
    """An owning handle on a paused sequence: ledger, counts, RNG position and control state stay in
    the Program; ``frontier`` is what was executed, ``ledger`` what was accepted, ``holds`` what a
    Snapshot keeps occupied and ``revoke`` would free (nothing for a Replay)."""

    owner: int
    index: int
    generation: int
    kind: ResumeKind
    frontier: int
    ledger: int
    holds: ResourceVector = field(default_factory=ResourceVector, compare=False)


class SequencePhase(enum.Enum):
    """Which unit a resident sequence needs next."""

    PREFILL = "prefill"
    REPLAY = "replay"
    DECODE = "decode"
    CONTROL = "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRules:
    """The part of the options that acts on the device.

    ``stop_token_ids`` end a row and are ``OutputSession.stop_token_ids``: the request's own and,
    unless ``ignore_eos``, the end-of-sequence ids. ``suppressed_until_min`` are the ids that are
    not drawn until ``min_tokens`` were produced; empty when ``min_tokens`` is 0.
    ``logprobs``/``prompt_logprobs`` are alternatives per position, None for none.
    """

    max_new_tokens: int
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    suppressed_until_min: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BindRequest:
    """Make a sequence resident: from root, from a checkpoint, or from a paused state.

    ``sampling.seed`` is set; ``publication_order`` is the engine's monotone ticket. ``consume``
    takes a checkpoint that nobody else holds over in place instead of copying it: it is gone then,
    and ``Bound.retired`` says so.
    """

    lane: int
    prepared: PreparedPrompt
    sampling: SamplingParams
    rules: OutputRules
    publication_order: int
    source: CheckpointRef | ResumeState | None = None
    source_reason: ReuseReason = ReuseReason.NO_MATCH
    consume: bool = False


class PlanKind(enum.Enum):
    """What a context transaction does."""

    BIND = "bind"
    CAPTURE = "capture"
    DEMOTE = "demote"
    PAUSE = "pause"


class Plan(SingleUse):
    """A sealed, feasible operation. ``begin`` consumes it; dropping it has no effect."""

    __slots__ = ("detail", "kind", "need")

    def __init__(self, kind: PlanKind, need: ResourceVector, detail: object) -> None:
        super().__init__()
        self.kind = kind
        self.need = need
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The sequence is installed whole and may run."""

    sequence: SequenceHandle
    phase: SequencePhase
    reused_tokens: int
    reuse_reason: ReuseReason
    moved_bytes: int = 0
    retired: tuple[CheckpointRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Captured:
    """A resident sequence's frontier was published as ``checkpoint``."""

    checkpoint: CheckpointRef
    facts: CheckpointFacts


@dataclass(frozen=True, slots=True)
class Demoted:
    """``checkpoint`` lies on the host as well: its device replica can be dropped."""

    checkpoint: CheckpointRef
    facts: CheckpointFacts
    moved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Paused:
    """The sequence left its lane; ``resume`` owns what is needed to go on."""

    resume: ResumeState
    moved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Aborted:
    """Nothing new stands; ``retired`` lists checkpoints that were released on the way."""

    reason: str
    retired: tuple[CheckpointRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Released:
    """A finished sequence left no checkpoint."""

    freed: ResourceVector = field(default_factory=ResourceVector)


ContextResult = Bound | Captured | Demoted | Paused | Aborted


class Transaction(Protocol):
    """An open context transaction."""

    @property
    def kind(self) -> PlanKind: ...

    def advance(self) -> ContextResult | None:
        """Move as far as possible without blocking; the result exactly once, then EngineFailure."""
        ...

    def cancel(self) -> None:
        """Revoke before copies start; afterwards the copies are awaited and then undone."""
        ...
