"""What the fake Program remembers of resident, paused and finished sequences."""

from __future__ import annotations

from dataclasses import dataclass, field

from ninfer_core.contract.checkpoints import (
    BindRequest,
    CheckpointFacts,
    ResumeKind,
    SequencePhase,
)
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.units import Permit
from ninfer_core.testing.fake_law import EMPTY_STATE, execute, next_token
from ninfer_core.testing.fake_sharing import Chain


@dataclass(slots=True, eq=False)
class FakeSequence:
    """``ledger`` is prompt plus accepted tokens, ``frontier`` how many of it were executed.

    ``state`` is carried by execution alone, so a replay that skips or repeats a token shows in
    every later token. ``floor_pages`` stay reserved until a resume makes new progress. ``extents``
    are the most tokens of each unit in flight; ``over`` says that the end of the output was
    accepted, ``cut`` that others are forced in place of tokens that were produced. ``chain``
    are full pages at its front that others read too.
    """

    request: BindRequest
    ledger: list[int]
    frontier: int = 0
    state: int = EMPTY_STATE
    replay_to: int = 0
    floor_pages: int = 0
    permit: Permit | None = None
    frozen: bool = False
    over: bool = False
    cut: bool = False
    chain: Chain = None
    extents: list[int] = field(default_factory=list)

    @property
    def in_unit(self) -> bool:
        return bool(self.extents)

    @property
    def reach(self) -> int:
        """The highest frontier that the sequence may have once its units have settled."""
        return self.frontier + sum(self.extents)

    @property
    def prompt_length(self) -> int:
        return self.request.prepared.length

    @property
    def phase(self) -> SequencePhase:
        if self.frontier < self.replay_to:
            return SequencePhase.REPLAY
        if self.frontier < self.prompt_length:
            return SequencePhase.PREFILL
        return SequencePhase.DECODE

    @property
    def produced(self) -> int:
        return len(self.ledger) - self.prompt_length

    def run_to(self, frontier: int) -> None:
        """Execute the ledger up to ``frontier``."""
        self.state = execute(self.state, self.ledger[self.frontier : frontier])
        self.frontier = frontier

    def accept(self, tokens: tuple[int, ...]) -> None:
        """Append accepted tokens and execute all but the last of them."""
        self.ledger.extend(tokens)
        self.run_to(len(self.ledger) - 1)

    def draw(self, count: int, vocab: int, before: tuple[int, ...] = ()) -> tuple[int, ...]:
        """The next ``count`` tokens after those of ``before``; nothing of the sequence changes."""
        rules, seed = self.request.rules, self.request.sampling.seed
        if seed is None:
            raise EngineFailure("a sequence was bound without a seed")
        state = execute(self.state, [*self.ledger[self.frontier :], *before])
        tokens: list[int] = []
        while len(tokens) < count:
            short = self.produced + len(before) + len(tokens) < rules.min_tokens
            may_stop = not (short and rules.suppressed_until_min)
            tokens.append(next_token(state, seed, vocab, may_stop=may_stop))
            state = execute(state, tokens[-1:])
        return tuple(tokens)


@dataclass(slots=True, eq=False)
class FakePaused:
    """A paused sequence: enough to go on, by copy (Snapshot) or by execution (Replay)."""

    request: BindRequest
    ledger: list[int]
    frontier: int
    state: int
    replay_to: int
    kind: ResumeKind
    chain: Chain = None


def revived(request: BindRequest, paused: FakePaused) -> FakeSequence:
    """The sequence that ``paused`` becomes again."""
    sequence = FakeSequence(request, list(paused.ledger), chain=paused.chain)
    if paused.kind is ResumeKind.SNAPSHOT:
        sequence.frontier, sequence.state = paused.frontier, paused.state
        sequence.replay_to = paused.replay_to
    else:
        sequence.replay_to = max(paused.frontier, paused.replay_to)
    return sequence


@dataclass(slots=True, eq=False)
class FakeCheckpoint:
    """A kept frontier. ``state_frontier`` may lie behind the KV coverage; the gap is replayed.
    ``chain`` are its full pages, which others may read too; none without a device replica."""

    ledger: tuple[int, ...]
    state: int
    state_frontier: int
    facts: CheckpointFacts
    template: str
    salt: str | None
    chain: Chain


@dataclass(slots=True)
class FakeJournal:
    """What the fake Program did, for tests: accepted tokens by ticket, unit row counts, rounds
    launched ahead, those of them without new permits, and rows void in them, and the tickets whose
    bind it found no room for (a test clears them when it likes)."""

    committed: dict[int, list[int]] = field(default_factory=dict)
    decode_rows: list[int] = field(default_factory=list)
    rounds_ahead: int = 0
    rounds_again: int = 0
    void_rows: int = 0
    chunk_tickets: list[int] = field(default_factory=list)
    short_binds: set[int] = field(default_factory=set)
    prefilled_tokens: int = 0
    replayed_tokens: int = 0
