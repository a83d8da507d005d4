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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from ninfer_core.ops.contracts.values import (
        DraftLaw,
        KvCache,
        PagedRows,
        SamplingRows,
        Stream,
        WeightMatrix,
    )
    from ninfer_core.ops.table import Ops


@dataclass(frozen=True, slots=True)
class TargetFeatures:
    """What the target must hand over: its post-norm hidden rows, and the residual after each of the
    layers ``taps``, which count from 0: transformers' ``hidden_states[l + 1]``."""

    final_hidden_post_norm: bool = False
    taps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetRows:
    """The target's rows that go with T columns, each only where the backend needs it.

    ``before`` x[T, H]: the hidden rows one column *before* each, after the final norm; zeros before
    column 0. ``taps`` x[T, n * H]: residuals of the columns themselves, side by side in the order
    of ``TargetFeatures.taps``.
    """

    before: Tensor | None = None
    taps: Tensor | None = None


@dataclass(frozen=True, slots=True)
class CacheShape:
    """An attention cache of a drafter: key and value heads of one size, for every column."""

    kv_heads: int
    head_size: int


class DraftPlace(Protocol):
    """Where the rows of one call stand. ``rows`` are their pages and columns, ``kv_slots`` i64[T]
    their physical places (-1 for padding), ``columns`` i32[T] their places in the sequence."""

    @property
    def rows(self) -> PagedRows: ...

    @property
    def kv_slots(self) -> Tensor: ...

    @property
    def columns(self) -> Tensor: ...

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

    @property
    def config(self) -> Mapping[str, Any]:
        """Of the drafter's own component, as the artifact holds it."""
        ...

    def embed(self, ids: Tensor) -> Tensor:
        """Rows x[T, H] of ids i32[T], any row of the target's table."""
        ...

    def draft_inputs(
        self,
        ids: Tensor,
        token_scale: Tensor,
        hidden: Tensor,
        hidden_scale: Tensor,
        inner_scale: Tensor | None = None,
    ) -> Tensor:
        """``[norm(embed(ids)), norm(hidden)]`` x[T, 2H] with scales f32[H], ``hidden`` x[T, H]
        normed by ``inner_scale`` before where one is given."""
        ...

    def logits(self, stream: Stream, eps: float | None = None) -> Tensor:
        """The target's head over the normed rows of a stream: f32[T, V], -inf where a row of the
        head stands for no token. ``eps`` is that of the norm, the target's if none is given."""
        ...

    def matrix(self, name: str, shape: tuple[int, int], use: str) -> WeightMatrix:
        """A prepared matrix; ``use`` names the input that it meets."""
        ...

    def stack(self, shapes: Mapping[str, tuple[int, ...]], use: str) -> WeightMatrix:
        """Several matrices stacked by rows, prepared as one."""
        ...

    def vector(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A small parameter of any shape in fp32."""
        ...

    def table(self, name: str, shape: tuple[int, int]) -> Tensor:
        """A matrix whose rows are looked up, in the floating type in which it is stored."""
        ...

    def place(self, name: str, values: Tensor) -> Tensor:
        """A table that the drafter made itself, where its weights are."""
        ...

    def scale(self, name: str) -> Tensor:
        """f32[H]: ``1 + w`` of a zero-centred norm."""
        ...

    def plain_scale(self, name: str, size: int) -> Tensor:
        """f32[size]: ``w`` of a norm that is not zero-centred."""
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
    def component(self) -> str:
        """The artifact's component that holds its weights; read only when it is chosen."""
        ...

    @property
    def caches(self) -> Sequence[CacheShape]:
        """The attention caches that it needs, known before it is bound."""
        ...

    @property
    def max_drafts(self) -> int:
        """The most drafts of a round that its weights allow."""
        ...

    @property
    def block(self) -> bool:
        """Whether it drafts all tokens of a round at once. A chain makes one after the other."""
        ...

    def needs(self) -> TargetFeatures: ...

    def bind(self, target: TargetParts) -> None:
        """Load its weights and keep the target's parts; once, before anything else."""
        ...

    def observe(
        self, ids: Tensor, rows: TargetRows, caches: Sequence[KvCache], place: DraftPlace
    ) -> None:
        """Take in rows that the target ran, in a chunk, a replay or a round.

        ids i32[T] are the tokens at the columns of ``place``. Rows of a round that are not accepted
        are observed again, with other tokens, before any call sees them.
        """
        ...

    def propose(
        self,
        ids: Tensor,
        rows: TargetRows,
        caches: Sequence[KvCache],
        places: Sequence[DraftPlace],
        drawing: SamplingRows | None = None,
    ) -> Proposal:
        """K drafts behind tokens ids i32[B], which are known and which the target has not run.

        A chain gets K ``places`` one row wide, the columns from the tokens' own on, live where a
        draft is wanted. A block backend gets one place K + 1 wide that begins with the token's
        column; ``live`` is 1 + the drafts that are wanted, or 0. ``rows.before`` x[B, H] are the
        target's rows before the tokens; there are no taps of them. What is written at these columns
        is written again, by ``observe``, before it is seen from another place.

        With ``drawing``, the temperatures and seeds of the sequences and no filters, each draft is
        drawn with the number of purpose DRAFT at its position, and ``q`` is the law that it was
        drawn from (``ninfer_core.ops.drawn_drafts``). Without it drafts are certain choices.
        """
        ...
