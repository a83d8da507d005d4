"""One finite execution: permit, launch, collect, decide, commit.

``launch`` enqueues Forward and returns at once; ``finish`` fills masks and enqueues the sampling
half; ``collect`` waits once. A :class:`PendingBatch` is consumed whole, by one commit or one abort.

Units are finished, collected and settled in launch order. A decode round may be launched ahead,
behind one that is not collected (``Program.launch_decode``); it stays in flight until the engine's
next cycle and is then the one behind which another is launched. Only an abort goes backwards.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from ninfer_core.contract.errors import RequestError
from ninfer_core.contract.frontend import MaskProvider
from ninfer_core.contract.media import Overlay
from ninfer_core.contract.resources import ResourceVector, SequenceHandle
from ninfer_core.contract.row_values import row_value
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.contract.single_use import SingleUse


class UnitKind(enum.Enum):
    """What one execution does; DECODE covers verify rounds.

    Counted in every round: members are single, so that their identity is a hash that costs
    nothing."""

    __hash__ = object.__hash__

    PREFILL = "prefill"
    REPLAY = "replay"
    DECODE = "decode"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class UnitNeed:
    """The next unit of a sequence. ``tokens`` is its extent, fixed by absolute position, restore
    points and start options alone; ``last`` says that the unit ends the prompt or the replay."""

    kind: UnitKind
    tokens: int
    last: bool


class Permit(SingleUse):
    """Room for one unit of one sequence up to the highest frontier it may reach."""

    __slots__ = ("detail", "growth", "need", "sequence")

    def __init__(
        self,
        sequence: SequenceHandle,
        need: UnitNeed,
        growth: ResourceVector,
        detail: object,
    ) -> None:
        self._consumed = False  # one call less for every row of every round
        self.sequence = sequence
        self.need = need
        self.growth = growth
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRow:
    """A prefill or replay chunk of one sequence. ``masks`` matters for the last chunk only."""

    sequence: SequenceHandle
    permit: Permit
    masks: MaskProvider | None = None
    overlays: tuple[Overlay, ...] = ()


@row_value
class DecodeRow:
    """One sequence of a decode round; ``masks`` is its constraint, None without one.

    A row may go on from a round not yet collected. Its masks speak of the output up to there: a
    round with masks is finished only once the round that it is behind has been settled.
    """

    sequence: SequenceHandle
    permit: Permit
    masks: MaskProvider | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRow:
    """Forced tokens from the Frontend; neither sampler nor RNG is involved."""

    sequence: SequenceHandle
    permit: Permit
    token_ids: tuple[int, ...]


class RowStatus(enum.Enum):
    """Whether a row may commit: sound, no legal token under its mask, NaN or infinity."""

    OK = "ok"
    DEAD_END = "dead_end"
    NONFINITE = "nonfinite"


@row_value
class PendingRow:
    """What one row produced after ``frontier`` accepted tokens; nothing of it is committed.

    ``scored`` are prompt log-probabilities that this unit computed, by ascending position.
    """

    sequence: SequenceHandle
    frontier: int
    token_ids: tuple[int, ...]
    status: RowStatus = RowStatus.OK
    logprobs: tuple[TokenLogprobs, ...] = ()
    scored: tuple[TokenLogprobs, ...] = ()
    drafted: int = 0


class PendingBatch(SingleUse):
    """The provisional outcome of a unit: frozen membership, one row per sequence.

    ``device_seconds`` is how long the device worked on it; ``waited_seconds`` how long ``collect``
    was blocked on the device, which is no work of the host.
    """

    __slots__ = ("detail", "device_seconds", "kind", "rows", "waited_seconds")

    def __init__(
        self,
        kind: UnitKind,
        rows: tuple[PendingRow, ...],
        *,
        device_seconds: float = 0.0,
        waited_seconds: float = 0.0,
        detail: object = None,
    ) -> None:
        self._consumed = False
        self.kind = kind
        self.rows = rows
        self.device_seconds = device_seconds
        self.waited_seconds = waited_seconds
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A chunk that produced no token: the sequence stands, committed, at ``frontier``.

    Seconds as in :class:`PendingBatch`.
    """

    sequence: SequenceHandle
    frontier: int
    scored: tuple[TokenLogprobs, ...] = ()
    status: RowStatus = RowStatus.OK
    device_seconds: float = 0.0
    waited_seconds: float = 0.0


class Disposition(enum.Enum):
    """What is done with a row.

    VOID: the round that this one was ahead of ended the row, whatever the reason, or made the
    Frontend force tokens next (a spent thinking budget). The row stays where that earlier round
    left it; it is then released by ``finish``, or goes on from there with a control unit.
    """

    ACCEPT = "accept"
    CANCELLED = "cancelled"
    FAILED = "failed"
    VOID = "void"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDecision:
    """What becomes of a row: ``accept`` takes ``1..produced`` tokens, and all of them unless the
    row is ``terminal`` or, in a decode round, the Frontend forces others in place of the rest; then
    the sequence goes on with a control unit, and its row in a round ahead is VOID. The other
    dispositions take none."""

    disposition: Disposition
    accepted: int = 0
    terminal: bool = False
    boundaries: tuple[int, ...] = ()
    error: RequestError | None = None


class Launched(Protocol):
    """A unit in flight. Dropping it is an engine failure: collect it, or abort what it gives.

    ``collect`` before every earlier unit was collected is an engine failure too.
    """

    @property
    def kind(self) -> UnitKind: ...

    def finish(self) -> None:
        """Fill masks from the rows' providers and enqueue sampling; nothing to do when fused."""
        ...

    def collect(self) -> PendingBatch | Progress:
        """Wait for the unit. Consumes the launch."""
        ...
