"""Draft backends: proposals for the target to verify, inside a Program.

A backend never samples the target and never decides acceptance. What it computes in a round runs
inside graph capture on devices that capture: it enqueues, copies nothing to the host and takes
places and lengths from tensors.

Its state belongs to the target's frontier: keys and values at *columns* that are the target's
tokens, in pages that the target's own share, and what of the target's hidden rows the next call
needs, which the Program keeps with the target's state. So whoever keeps, forks, pauses or restores
a sequence does the same to its drafter, without asking it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.ops.contracts.values import DraftLaw, KvCache, Stream, WeightMatrix
    from ninfer_core.ops.table import Ops


@dataclass(frozen=True, slots=True)
class TargetFeatures:
    """What the target must hand over: its post-norm hidden rows, residuals after these layers."""

    final_hidden_post_norm: bool = False
    taps: tuple[int, ...] = ()


class DraftPhase(enum.Enum):
    """Whether drafts are made before the target runs, or after it accepted the round before."""

    BEFORE_TARGET = "before_target"
    AFTER_ACCEPT = "after_accept"


class DraftPlace(Protocol):
    """Where the rows of one call stand: their columns, pages and rotary angles, opaque."""

    def linear(self, x: Tensor, weight: WeightMatrix) -> Tensor:
        """``x W^T`` by the route of the call: that of chunks, or the row-invariant one."""
        ...


class AttentionLayer(Protocol):
    """A full-attention decoder layer of the target's kind with the drafter's own weights."""

    def store(self, x: Tensor, cache: KvCache, place: DraftPlace) -> None:
        """Keys and values of rows x[T, H] alone, at the columns of ``place``."""
        ...

    def run(self, x: Tensor, cache: KvCache, place: DraftPlace, scale: Tensor) -> Stream:
        """The whole layer on one row of each sequence, x[B, H], over columns 1 and up to its own;
        the stream is read next by the norm of ``scale`` f32[H]."""
        ...


class TargetParts(Protocol):
    """What a target lends its drafter. Weights are the drafter's own, found by their names in the
    checkpoint without the component's prefix; a missing or misshapen one raises ArtifactError."""

    @property
    def ops(self) -> Ops: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def eps(self) -> float:
        """Of every norm."""
        ...

    @property
    def addressable(self) -> int:
        """Vocabulary rows that stand for tokens."""
        ...

    def embed(self, ids: Tensor) -> Tensor:
        """Rows x[T, H] of ids i32[T]."""
        ...

    def logits(self, stream: Stream) -> Tensor:
        """The target's head over the normed rows of a stream: f32[T, V]."""
        ...

    def matrix(self, name: str, shape: tuple[int, int], use: str) -> WeightMatrix:
        """A prepared matrix; ``use`` names the input that it meets."""
        ...

    def scale(self, name: str) -> Tensor:
        """f32[H]: ``1 + w`` of a zero-centred norm."""
        ...

    def attention_layer(self, prefix: str) -> AttentionLayer: ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """``drafts`` i32[B, K] and ``q``, the law they were drawn from; None when the drafts are
    one-hot, that is each is its drafter's certain choice."""

    drafts: Tensor
    q: DraftLaw | None = None


class DraftBackend(Protocol):
    """One drafter beside one target."""

    @property
    def phase(self) -> DraftPhase: ...

    @property
    def component(self) -> str:
        """The artifact's component that holds its weights; read only when it is chosen."""
        ...

    @property
    def caches(self) -> int:
        """How many attention caches of the target's kind it needs."""
        ...

    def needs(self) -> TargetFeatures: ...

    def bind(self, target: TargetParts) -> None:
        """Load its weights and keep the target's parts; once, before anything else."""
        ...

    def observe(
        self, ids: Tensor, hidden: Tensor, caches: Sequence[KvCache], place: DraftPlace
    ) -> None:
        """Take in rows that the target ran, in a chunk, a replay or a round.

        ids i32[T] are the tokens at the columns of ``place``, hidden x[T, H] the target's rows one
        column *before* each (zeros before column 0). Rows of a round that are not accepted are
        observed again, with other tokens, before any call sees them.
        """
        ...

    def propose(
        self, ids: Tensor, hidden: Tensor, caches: Sequence[KvCache], places: Sequence[DraftPlace]
    ) -> Proposal:
        """One draft for each of K ``places``, the columns from the frontier on.

        ids i32[B] are the tokens at the first of them, hidden x[B, H] the target's rows before it.
        """
        ...
