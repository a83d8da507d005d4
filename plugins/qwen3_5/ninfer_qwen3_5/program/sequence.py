"""One resident sequence: its ledger, its frontier, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ninfer_core.contract.checkpoints import BindRequest, SequencePhase
from ninfer_core.store.histories import History
from ninfer_core.store.state_slots import Slot
from ninfer_qwen3_5.program.provenance import Trail
from ninfer_qwen3_5.program.steering import Steering

if TYPE_CHECKING:
    from ninfer_qwen3_5.program.work import RowWork


@dataclass(slots=True)
class Health:
    """Whether a state may be kept or adopted. A broken one gave a NaN, or what came of it did."""

    broken: bool = False


@dataclass(slots=True)
class Sequence:
    """Mutable record, owned by the Program.

    The *ledger* is the prompt plus every accepted token; the *frontier* counts executed tokens and
    is at most one behind the ledger once the prompt has run. Of the ring of state slots, ``slot``
    holds the state at the frontier and ``spare``, the next one, is where a unit builds the state
    after it; with three of them, a round launched ahead builds in the third and nothing that an
    uncollected round read is overwritten. ``flying`` and ``flying_tokens`` count the units not yet
    settled and the tokens that they execute, ``horizon`` the furthest of them. ``replay_to`` is the
    frontier that a resumed sequence had before it was paused, and ``reach`` the frontier of its
    first new unit, up to which its pages are its own. ``order`` differs in every binding and
    ``row`` is the execution row. ``plain`` says that the settings leave the raw logits' largest as
    the token; ``top`` log-probabilities and ``rope_delta`` are the request's, at hand for every
    round. Pages for the first ``room`` tokens are mapped, and perhaps for more. ``drafts`` are what
    the next round verifies; they change how much it produces, never what. ``coming`` is the most
    that the round in flight makes, ``latest`` the unit launched last. ``steering`` says how
    many are worth it, None where there is no drafter.

    ``points`` are the frontiers inside the prompt at which chunks end besides the regular ones,
    ascending; ``trail`` says where chunks did end. ``health`` is shared with the checkpoints made
    of this sequence, and ``origin`` is that of the checkpoint that it was made from.
    """

    request: BindRequest
    order: int
    history: History
    ring: tuple[Slot, ...]
    row: int
    generated: list[int] = field(default_factory=list)
    frontier: int = 0
    replay_to: int = 0
    reach: int = 0
    turn: int = 0
    flying: int = 0
    flying_tokens: int = 0
    horizon: int = 0
    room: int = 0
    drafts: tuple[int, ...] = ()
    coming: int = 0
    latest: RowWork | None = None
    steering: Steering | None = None
    points: tuple[int, ...] = ()
    trail: Trail = field(default_factory=Trail)
    health: Health = field(default_factory=Health)
    origin: Health | None = None
    prompt_length: int = field(init=False)
    rope_delta: int = field(init=False)
    top: int | None = field(init=False)
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_length = self.request.prepared.length
        self.rope_delta = self.request.prepared.rope_delta
        self.top = self.request.rules.logprobs
        sampling, rules = self.request.sampling, self.request.rules
        self.plain = (
            sampling.temperature <= 0
            and not sampling.penalised
            and not sampling.logit_bias
            and not rules.suppressed_until_min
        )

    @property
    def slot(self) -> Slot:
        return self.ring[self.turn]

    @property
    def spare(self) -> Slot:
        return self.slot_after(1)

    def slot_after(self, units: int) -> Slot:
        """The slot that holds, or will hold, the state after so many more units."""
        return self.ring[(self.turn + units) % len(self.ring)]

    def swap(self) -> None:
        """The spare slot holds the state from now on."""
        self.turn = (self.turn + 1) % len(self.ring)

    def fail(self) -> None:
        """Its state is not to be trusted, nor is the checkpoint's that it began with."""
        self.health.broken = True
        if self.origin is not None:
            self.origin.broken = True

    def follow(self, past: Sequence) -> None:
        """Have the replay of a paused sequence before it."""
        self.generated, self.replay_to = past.generated, past.reached
        self.trail, self.health, self.origin = past.trail, past.health, past.origin
        self.steering = past.steering

    @property
    def reached(self) -> int:
        """The deepest frontier that it ever had."""
        return max(self.frontier, self.replay_to)

    @property
    def busy(self) -> bool:
        return self.flying > 0

    @property
    def ledger_length(self) -> int:
        return self.prompt_length + len(self.generated)

    @property
    def drafts_to_verify(self) -> int:
        """Of its coming round, at most."""
        return self.coming if self.busy else len(self.drafts)

    def drafts_wanted(self, rows: int) -> int:
        """Drafts that its coming round of so many ``rows`` should make."""
        if self.steering is None:
            return 0
        behind = int(self.busy)
        least = self.remaining - self.flying - 2
        return max(0, min(self.steering.wanted(rows, behind), least))

    @property
    def remaining(self) -> int:
        """Tokens that may still be produced."""
        return self.request.rules.max_new_tokens - len(self.generated)

    @property
    def phase(self) -> SequencePhase:
        if self.frontier < self.replay_to:
            return SequencePhase.REPLAY
        if self.frontier < self.prompt_length:
            return SequencePhase.PREFILL
        return SequencePhase.DECODE

    @property
    def waiting_token(self) -> int:
        """The ledger's last token, which has not run yet."""
        return self.generated[-1] if self.generated else int(self.request.prepared.token_ids[-1])

    def chunk_end(self, chunk: int) -> int:
        """Where the next chunk of the prompt, or the next unit of a replay, stops.

        A replay goes the way of the first execution: by the same chunks, and where tokens ran one
        by one, up to ``chunk`` of them in a unit.
        """
        start = self.frontier
        if start >= self.replay_to:
            return next_split(start, chunk, self.prompt_length, *self.points)
        before = self.trail.stop_after(start)
        if before is not None and not self.trail.stepped(start):
            return before
        return next_split(start, chunk, self.replay_to if before is None else before)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Ledger tokens ``start .. stop - 1``."""
        prompt = self.request.prepared.token_ids[start:stop].tolist()
        first = max(start, self.prompt_length) - self.prompt_length
        return [*prompt, *self.generated[first : max(0, stop - self.prompt_length)]]


def next_split(frontier: int, chunk: int, *ends: int) -> int:
    """Where a chunk that starts at ``frontier`` stops: at a multiple of ``chunk``, or at an end
    that lies before it. Splits depend on absolute positions alone."""
    stop = (frontier // chunk + 1) * chunk
    return min([stop, *(end for end in ends if end > frontier)])
