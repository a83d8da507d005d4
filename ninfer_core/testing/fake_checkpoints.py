"""What the fake Program keeps of sequences: full pages are shared, a begun page and a slot not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ninfer_core.contract.checkpoints import (
    Captured,
    CheckpointAction,
    CheckpointFacts,
    ContextResult,
    Demoted,
    Plan,
    PlanKind,
    Tier,
)
from ninfer_core.contract.errors import CacheFault, EngineFailure
from ninfer_core.contract.resources import (
    CheckpointRef,
    NeverFits,
    ResourceVector,
    SequenceHandle,
    Shortfall,
)
from ninfer_core.testing.fake_accounts import POOL, Amount, FakeAccounts
from ninfer_core.testing.fake_law import EMPTY_STATE, execute
from ninfer_core.testing.fake_sequences import FakeCheckpoint, FakeSequence
from ninfer_core.testing.fake_sharing import Chain, SharedPages, links, total
from ninfer_core.testing.fake_transactions import FakeConfig, FakeTransaction, TransactionOwner

OWNER = 7


@dataclass(frozen=True, slots=True)
class CaptureDetail:
    handle: SequenceHandle
    sequence: FakeSequence
    need: Amount


@dataclass(frozen=True, slots=True)
class DemoteDetail:
    ref: CheckpointRef
    need: Amount


@dataclass(frozen=True, slots=True)
class HostCopy:
    """The owner of what a checkpoint holds on the host, all of it its own."""

    ref: CheckpointRef


class FakeCheckpoints:
    """Checkpoints, each an owner in the accounts and a user of shared pages; what lies on the host
    is owned apart."""

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
        self.demoted = 0
        self.consumed = 0

    def checkpoint(self, ref: CheckpointRef) -> FakeCheckpoint:
        if ref not in self.all:
            raise CacheFault(f"stale checkpoint {ref}")
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

    def actions(self, ref: CheckpointRef) -> dict[CheckpointAction, ResourceVector]:
        """What each action would free."""
        device, host = self._on_device(ref), self._accounts.held(HostCopy(ref))
        found = {CheckpointAction.DELETE: (device + host).vector()}
        replicas = self.checkpoint(ref).facts.replicas
        if len(replicas) == 2:
            found[CheckpointAction.DROP_DEVICE] = device.vector()
            found[CheckpointAction.DROP_HOST] = host.vector()
        elif Tier.DEVICE in replicas and self._config.demotes:
            found[CheckpointAction.DEMOTE] = device.vector()
        return found

    def on_device(self, ref: object) -> bool:
        return isinstance(ref, CheckpointRef) and Tier.DEVICE in self.checkpoint(ref).facts.replicas

    def plan_demote(self, ref: CheckpointRef) -> Plan | Shortfall | NeverFits:
        need = Amount(host=1 + -(-self.checkpoint(ref).facts.frontier // self._config.page_tokens))
        if CheckpointAction.DEMOTE not in self.actions(ref) or need.host > self._config.host:
            return NeverFits("host_bytes", need.host, self._config.host)
        return self._accounts.shortfall(need) or Plan(
            PlanKind.DEMOTE, need.vector(), DemoteDetail(ref, need)
        )

    def begin_demote(self, detail: DemoteDetail, owner: TransactionOwner) -> FakeTransaction:
        kept, copy = self.checkpoint(detail.ref), HostCopy(detail.ref)
        self.leased = detail.ref
        self._accounts.take(copy, detail.need)

        def apply() -> ContextResult:
            self.leased = None
            self.demoted += 1
            kept.facts = replace(kept.facts, replicas=frozenset(Tier))
            return Demoted(detail.ref, kept.facts, detail.need.host)

        def undo() -> None:
            self.leased = None
            self._accounts.give_all(copy)

        return FakeTransaction(PlanKind.DEMOTE, self._config.demote_steps, apply, undo, owner)

    def drop(self, ref: CheckpointRef, action: CheckpointAction) -> ResourceVector:
        freed = self.actions(ref).get(action)
        if freed is None or action is CheckpointAction.DEMOTE:
            raise CacheFault(f"{action.value} is not among the actions of {ref}")
        if ref == self.leased:
            raise EngineFailure(f"{ref} was dropped while a bind reads it")
        if action is CheckpointAction.DELETE:
            self.retire(ref)
        elif action is CheckpointAction.DROP_DEVICE:
            self._leave(ref, Tier.DEVICE)
        else:
            self._leave(ref, Tier.HOST)
        return freed

    def joint(self, used: Iterable[Chain]) -> list[frozenset[CheckpointRef]]:
        """Those that share a segment which none of the chains ``used`` reaches."""
        taken = {id(segment) for chain in used for segment in links(chain)}
        groups: dict[int, list[CheckpointRef]] = {}
        for ref, kept in self.all.items():
            for segment in links(kept.chain):
                groups.setdefault(id(segment), []).append(ref)
        found = {frozenset(group) for segment, group in groups.items() if segment not in taken}
        return [g for g in found if len(g) > 1 and self.leased not in g]

    def forget(self) -> tuple[CheckpointRef, ...]:
        for ref in [ref for ref in self.all if ref != self.leased]:
            self.retire(ref)
        return tuple(self.all)

    def retire(self, ref: object) -> None:
        """Take a checkpoint out, with all that it still holds."""
        assert isinstance(ref, CheckpointRef)
        self._shared.leave(self.all.pop(ref).chain)
        self._accounts.give_all(ref)
        if HostCopy(ref) in self._accounts.owners():
            self._accounts.give_all(HostCopy(ref))

    def owners(self) -> set[object]:
        return {*self.all, *(HostCopy(ref) for ref in self.all)}

    def _leave(self, ref: CheckpointRef, tier: Tier) -> None:
        kept = self.checkpoint(ref)
        kept.facts = replace(kept.facts, replicas=kept.facts.replicas - {tier})
        if tier is Tier.HOST:
            self._accounts.give_all(HostCopy(ref))
            return
        self._shared.leave(kept.chain)
        kept.chain = None
        self._accounts.give_all(ref)

    def _on_device(self, ref: CheckpointRef) -> Amount:
        shared = self._shared.freed(self.checkpoint(ref).chain)
        return self._accounts.held(ref) + Amount(pages=shared)
