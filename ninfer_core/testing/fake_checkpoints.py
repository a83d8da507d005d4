"""What the fake Program keeps of sequences: full pages are shared, a begun page and a slot not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ninfer_core.contract.checkpoints import (
    Captured,
    CheckpointFacts,
    ContextResult,
    Plan,
    PlanKind,
    Tier,
)
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import CheckpointRef, NeverFits, SequenceHandle, Shortfall
from ninfer_core.testing.fake_accounts import POOL, Amount, FakeAccounts
from ninfer_core.testing.fake_law import EMPTY_STATE, execute
from ninfer_core.testing.fake_sequences import FakeCheckpoint, FakeSequence
from ninfer_core.testing.fake_sharing import Chain, SharedPages, total
from ninfer_core.testing.fake_transactions import FakeConfig, FakeTransaction, TransactionOwner

OWNER = 7


@dataclass(frozen=True, slots=True)
class CaptureDetail:
    handle: SequenceHandle
    sequence: FakeSequence
    need: Amount


class FakeCheckpoints:
    """Checkpoints, each an owner in the accounts and a user of shared pages."""

    def __init__(
        self,
        config: FakeConfig,
        accounts: FakeAccounts,
        shared: SharedPages,
        indices: Iterator[int],
    ) -> None:
        self.all: dict[CheckpointRef, FakeCheckpoint] = {}
        self.leased: CheckpointRef | None = None
        self._config = config
        self._accounts = accounts
        self._shared = shared
        self._indices = indices
        self.captured = 0

    def checkpoint(self, ref: CheckpointRef) -> FakeCheckpoint:
        if ref not in self.all:
            raise EngineFailure(f"stale checkpoint {ref}")
        return self.all[ref]

    def own(self, frontier: int) -> Amount:
        """What a checkpoint holds for itself: its slot, and the page that is not full."""
        return Amount(pages=1 if frontier % self._config.page_tokens else 0, slots=1)

    def full_pages(self, frontier: int) -> int:
        return frontier // self._config.page_tokens

    def plan_capture(
        self, handle: SequenceHandle, sequence: FakeSequence
    ) -> Plan | Shortfall | NeverFits:
        if not self._config.captures:
            return NeverFits("captures", 1, 0)
        if sequence.in_unit or sequence.permit is not None or sequence.frozen:
            raise EngineFailure("a sequence with a unit or a permit cannot be captured")
        need = self.own(sequence.frontier)
        return self._accounts.shortfall(need) or Plan(
            PlanKind.CAPTURE, need.vector(), CaptureDetail(handle, sequence, need)
        )

    def begin_capture(self, detail: CaptureDetail, owner: TransactionOwner) -> FakeTransaction:
        handle, sequence, need = detail.handle, detail.sequence, detail.need
        sequence.frozen = True
        self._accounts.take("capture", need)

        def apply() -> ContextResult:
            undo()
            fresh = max(0, self.full_pages(sequence.frontier) - total(sequence.chain))
            self._accounts.give(handle, Amount(pages=fresh))
            sequence.chain = self._shared.append(sequence.chain, fresh)
            self.captured += 1
            return self._publish(sequence, self._shared.join(sequence.chain))

        def undo() -> None:
            sequence.frozen = False
            self._accounts.give_all("capture")

        steps = self._config.capture_steps
        return FakeTransaction(PlanKind.CAPTURE, steps, apply, undo, owner)

    def keep(self, handle: SequenceHandle, sequence: FakeSequence) -> Captured:
        """Turn an ended sequence into a checkpoint that owns what the sequence owned."""
        self._accounts.give_all(handle)
        fresh = self.full_pages(sequence.frontier) - total(sequence.chain)
        if fresh < 0:
            raise EngineFailure("a sequence was kept before what it had adopted")
        return self._publish(sequence, self._shared.append(sequence.chain, fresh))

    def _publish(self, sequence: FakeSequence, chain: Chain) -> Captured:
        """Keep the frontier of ``sequence``, whose full pages are ``chain`` by now."""
        ref = CheckpointRef(OWNER, next(self._indices), 1)
        frontier = sequence.frontier
        own = self.own(frontier)
        pages = Amount(pages=self.full_pages(frontier) + own.pages, slots=1)
        facts = CheckpointFacts(
            frontier=frontier,
            coverage={POOL: frontier},
            replicas=frozenset({Tier.DEVICE}),
            recovery_frontier=0,
            footprint=pages.vector(),
        )
        lagging = max(0, frontier - self._config.state_lag)
        identity = sequence.request.prepared.identity
        self.all[ref] = FakeCheckpoint(
            tuple(sequence.ledger[:frontier]),
            self._state(sequence, lagging),
            lagging,
            facts,
            identity.template,
            identity.salt,
            chain,
        )
        self._accounts.take(ref, own)
        return Captured(ref, facts)

    def _state(self, sequence: FakeSequence, frontier: int) -> int:
        if frontier == sequence.frontier:
            return sequence.state
        return execute(EMPTY_STATE, sequence.ledger[:frontier])

    def frees(self, ref: CheckpointRef) -> Amount:
        shared = self._shared.freed(self.checkpoint(ref).chain)
        return self._accounts.held(ref) + Amount(pages=shared)

    def drop(self, ref: CheckpointRef) -> Amount:
        freed = self.frees(ref)
        if ref == self.leased:
            raise EngineFailure(f"{ref} was dropped while a bind reads it")
        self._shared.leave(self.all.pop(ref).chain)
        self._accounts.give_all(ref)
        return freed
