"""Text on one side, tokens on the other: what a model family's Frontend provides.

The Frontend is shared and thread safe. An :class:`OutputSession` belongs to one request, survives
pause and replay, and is touched by the engine worker only.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ninfer_core.contract.events import Channel, Delta, FinishReason, ToolCall
from ninfer_core.contract.media import MediaItem
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.reuse import RestoreKind as RestoreKind
from ninfer_core.contract.row_values import row_value
from ninfer_core.contract.sampling import SamplingParams, TokenLogprobs
from ninfer_core.contract.single_use import SingleUse

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, order=True)
class RestorePoint:
    """An exact token frontier, ``0 < frontier < n``; prefill is split there."""

    frontier: int
    kind: RestoreKind


@dataclass(frozen=True, slots=True)
class PromptIdentity:
    """What must be equal, besides the tokens themselves, before a checkpoint may be reused.

    ``digest`` covers tokens, positions and media and only shortens the candidate list.
    """

    digest: bytes
    media_digests: tuple[bytes, ...]
    template: str
    salt: str | None = None


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A checked but uncompiled constraint. ``key`` identifies equal sources for the cache."""

    kind: str
    text: str
    framing: str
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedPrompt:
    """A pure value: everything that execution needs to know of a prompt.

    ``token_ids`` i32[n]; ``positions`` i32[3, n], or None when all three axes count 0..n-1;
    ``rope_delta`` is what a later logical position adds to become a rotary position.
    """

    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32] | None
    rope_delta: int
    media: tuple[MediaItem, ...]
    identity: PromptIdentity
    restore_points: tuple[RestorePoint, ...]
    starts_in: Channel
    grammar: GrammarSource | None
    request: PromptInput

    @property
    def length(self) -> int:
        return int(self.token_ids.shape[0])


class ColumnState(enum.Enum):
    """What a mask column says: no constraint, a filled mask, no legal token, or never reached."""

    UNCONSTRAINED = "unconstrained"
    READY = "ready"
    DEAD_END = "dead_end"
    UNREACHABLE = "unreachable"


class MaskProvider(Protocol):
    """Fills the token masks of one row; no lasting effect on the matcher."""

    def fill(self, drafts: Sequence[int], out: npt.NDArray[np.uint32]) -> tuple[ColumnState, ...]:
        """Fill ``out`` u32[K+1, ceil(V/32)], column i after ``drafts[:i]``; bit set = allowed."""
        ...


class CompiledGrammar(Protocol):
    """A compiled constraint, shared between requests and immutable."""

    @property
    def memory_bytes(self) -> int: ...


@row_value
class OutputSpan:
    """Tokens that the model produced in one unit for one row, already cut to the budget.

    ``limit`` is the finish that the engine imposes after the last token (budget, context,
    cancellation) unless the span ends by itself earlier. ``control`` marks forced tokens.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    control: bool = False
    limit: FinishReason | None = None


class OutputPreview(SingleUse):
    """What a span would mean, without any effect until it is committed.

    ``accepted`` tokens count: all of them unless ``finish`` is set or ``forced`` ones come in place
    of the rest, as where a thought opens and spends its budget within the tokens of one round.
    ``deltas`` are ready to publish; ``boundaries`` are positions inside the accepted span that the
    template can rebuild; ``forced`` asks for a control unit with these tokens next.
    """

    __slots__ = (
        "accepted",
        "boundaries",
        "deltas",
        "finish",
        "forced",
        "state",
        "stop_match",
    )

    def __init__(
        self,
        *,
        accepted: int,
        deltas: tuple[Delta, ...],
        finish: FinishReason | None = None,
        stop_match: str | int | None = None,
        boundaries: tuple[int, ...] = (),
        forced: tuple[int, ...] = (),
        state: object = None,
    ) -> None:
        self._consumed = False  # one call less for every row of every round
        self.accepted = accepted
        self.deltas = deltas
        self.finish = finish
        self.stop_match = stop_match
        self.boundaries = boundaries
        self.forced = forced
        self.state = state


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSummary:
    """The committed output so far."""

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    reasoning_tokens: int
    warnings: tuple[str, ...] = ()


class OutputSession(Protocol):
    """Interprets one request's output: channels, stops, text, grammar, budget of thought."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids that end the output wherever they appear.

        The request's own and, unless ``ignore_eos``, the end-of-sequence ids.
        """
        ...

    @property
    def thinking_room(self) -> int | None:
        """Tokens that may be produced before others are forced (a thinking budget that is spent);
        None where nothing will be forced as things stand. A hint: a round is best not made longer,
        and what it produces behind that is not accepted."""
        ...

    def masks(self) -> MaskProvider | None:
        """The row's constraint for the coming unit, or None when it is unconstrained."""
        ...

    def preview(self, span: OutputSpan) -> OutputPreview:
        """Interpret ``span`` after the committed output; a dropped preview leaves no trace."""
        ...

    def commit(self, preview: OutputPreview) -> None:
        """Make ``preview`` permanent. Cannot fail for the latest preview of this session."""
        ...

    def summary(self) -> OutputSummary: ...


class Frontend(Protocol):
    """Tokenizer, template, output channels of one model. Thread safe after construction."""

    @property
    def default_sampling(self) -> SamplingParams:
        """The checkpoint's own generation defaults."""
        ...

    @property
    def vocab_size(self) -> int:
        """Addressable ids; the model may have more rows, which are never sampled."""
        ...

    def render(self, prompt: PromptInput) -> str:
        """The prompt as text. Raises InvalidPrompt."""
        ...

    def prepare(self, prompt: PromptInput) -> PreparedPrompt:
        """Render, tokenise (at most max_context + 1 tokens) and check.

        Raises InvalidPrompt, ContextLengthExceeded, InvalidSchema, MediaError, Unsupported.
        """
        ...

    def compile(self, source: GrammarSource) -> CompiledGrammar:
        """Compile or fetch from the cache; blocks. Raises InvalidSchema, Unsupported."""
        ...

    def grammar_loader(self) -> Callable[[], None] | None:
        """What sets up all that the first :meth:`compile` would, on any thread, and may take
        seconds; None where there is nothing to set up."""
        ...

    def close(self) -> None:
        """End what compiling started; nothing is compiled afterwards. Idempotent."""
        ...

    def open_output(
        self,
        prepared: PreparedPrompt,
        options: GenerationOptions,
        compiled: CompiledGrammar | None,
    ) -> OutputSession: ...

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of ``text``; ``special`` recognises special-token spellings inside it."""
        ...

    def detokenize(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str: ...

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """The exact bytes of each token, for log-probability reports."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Facts worth showing: vocabulary, stop ids, template mode."""
        ...
