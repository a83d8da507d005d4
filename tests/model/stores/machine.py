"""A random walk over everything that a Program may be asked of its stores, beside the ledger that
says what must come of it, and with every content read back."""

from __future__ import annotations

import copy
from typing import Any

from ninfer_core.contract.checkpoints import (
    Captured,
    CheckpointAction,
    Tier,
)
from ninfer_core.contract.resources import NeverFits
from ninfer_core.contract.units import (
    ChunkRow,
    DecodeRow,
    Disposition,
    PendingBatch,
    Permit,
    RowDecision,
    UnitKind,
)
from tests.model.stores.base import DELETE, DEMOTE, DROP_DEVICE, DROP_HOST, Need, Row
from tests.model.stores.ledger import Ledger, Owner, pages_of
from tests.model.stores.moves import Moves
from tests.model.stores.units import VOCAB, state_after


class StoreMachine(Moves):
    """``step`` does one thing at random and proves everything afterwards."""

    def step(self) -> None:
        names, before = [*WEIGHTS], self.done.total()
        while self.done.total() == before:
            [name] = self.random.choices(names, [WEIGHTS[one] for one in names])
            getattr(self, name)()
        self.prove()

    def prove(self) -> None:
        """The ledgers agree and every replica holds what it says."""
        self.program._stores.spare()
        self.ledger.tidy()
        self.program.check()
        free = self.program.capacity().available
        have = (free.state_slots, free.pages["main"], free.host_bytes)
        assert have == self.ledger.free(), f"{have} free, {self.ledger.free()} by the model"
        self.contents.poison()
        for ref, owner in self.kept.items():
            self.contents.checkpoint(ref, owner)
        for row in self.rows:
            self.contents.sequence(row.handle, row.owner)
        for resume, row in self.snapshots.items():
            self.contents.snapshot(resume, row.owner)
        self._prove_actions()
        if self.moving is None:
            self.contents.nothing_is_pinned()

    def close(self) -> None:
        """End in the middle of whatever it is."""
        self.program.close()
        capacity = self.program.capacity()
        assert capacity.available == capacity.total, "something is held after the end"
        self.program.check()

    def unit(self) -> None:
        row = self._pick(self.rows)
        if row is None or self._moves(row) or len(row.ledger) >= 200:
            return
        need = self.program.unit_need(row.handle)
        grown = max(0, pages_of(row.frontier + need.tokens) - len(row.owner.pages))
        permit = self.program.reserve(row.handle, need)
        if self._refused(permit, (0, grown, 0)):
            return
        assert isinstance(permit, Permit)
        self.done[need.kind.value] += 1
        if self.random.random() < 0.1:
            self.program.settle(permit)
            return
        self._run(row, need, permit)

    def capture(self) -> None:
        row = self._pick(self.rows)
        if row is None or self.moving is not None:
            return
        plan = self.program.plan_capture(row.handle)
        if not row.frontier:
            assert isinstance(plan, NeverFits)
        elif not self._refused(plan, (1, 0, 0)):
            captured = self.program.begin(plan).advance()
            assert isinstance(captured, Captured)
            self._keep(captured.checkpoint, list(row.owner.tokens), row.owner.pages)
            self.done["capture"] += 1

    def finish(self) -> None:
        row = self._pick(self.rows)
        if row is None or self._moves(row):
            return
        kept = self.program.finish(row.handle, keep=self.random.random() < 0.7)
        self.rows.remove(row)
        self.ledger.owners.remove(row.owner)
        if isinstance(kept, Captured):
            self._keep(kept.checkpoint, row.owner.tokens, row.owner.pages)
        self.done["finish"] += 1

    def drop(self) -> None:
        ref = self._pick(self.kept)
        if ref is None or self._moves(ref):
            return
        actions = [one for one in self.program.actions(ref) if one is not DEMOTE]
        weights = [{DELETE: 1, DROP_DEVICE: 6}.get(one, 1) for one in actions]
        [action] = self.random.choices(actions, weights)
        self.program.drop(ref, action)
        _drop(self.ledger, self.kept[ref], action)
        if action is DELETE:
            del self.kept[ref]
        self.done[action.value] += 1

    def go_on(self) -> None:
        if self.moving is not None:
            self.done["advance"] += 1
            self._settle(self.moving.transaction.advance())

    def cancel(self) -> None:
        if self.moving is not None:
            self.moving.transaction.cancel()
            self.done["cancel"] += 1

    def _run(self, row: Row, need: Any, permit: Permit) -> None:
        kind, owner = need.kind, row.owner
        stop = row.frontier + need.tokens
        ran = row.ledger[:stop]
        if kind is UnitKind.DECODE:
            launched = self.program.launch_decode([DecodeRow(sequence=row.handle, permit=permit)])
        else:
            chunk = ChunkRow(sequence=row.handle, permit=permit)
            replays = kind is UnitKind.REPLAY
            launch = self.program.launch_replay if replays else self.program.launch_prefill
            launched = launch(chunk)
        launched.finish()
        outcome = launched.collect()
        committed = True
        if isinstance(outcome, PendingBatch):
            [made] = outcome.rows
            assert made.token_ids == (state_after(ran) % VOCAB,), "a token of another state"
            committed = self.random.random() < 0.9
            if committed:
                accept = RowDecision(disposition=Disposition.ACCEPT, accepted=1)
                self.program.commit(outcome, [accept])
                row.said += made.token_ids
            else:
                self.program.abort(outcome)
        if committed:
            owner.tokens = ran
            self.ledger.grow(owner, pages_of(stop))
        room = pages_of(max(row.frontier, owner.fronts))
        owner.pages = owner.pages[:room]

    def _prove_actions(self) -> None:
        ref = self._pick(self.kept)
        if ref is None or self._moves(ref):
            return
        owner = self.kept[ref]
        expected = {DELETE}
        if owner.image and owner.slots:
            expected |= {DROP_DEVICE, DROP_HOST}
        elif not owner.image:
            expected.add(DEMOTE)
        stated = self.program.actions(ref)
        assert set(stated) == expected, stated
        tiers = {Tier.DEVICE} if owner.slots else set()
        assert self.program.facts(ref).replicas == (tiers | {Tier.HOST} if owner.image else tiers)
        for action, frees in stated.items():
            says = (frees.state_slots, frees.pages["main"] if frees.pages else 0, frees.host_bytes)
            comes = _what_if(self.ledger, owner, action)
            assert says == comes, f"{action} says {says}, the model {comes}"


WEIGHTS = {
    "start": 3,
    "adopt": 6,
    "take_over": 1,
    "unit": 14,
    "capture": 6,
    "finish": 3,
    "drop": 3,
    "demote": 8,
    "pause": 2,
    "resume": 3,
    "give_up": 0.5,
    "go_on": 8,
    "cancel": 0.3,
}
KINDS = (
    *("prefill", "decode", "replay", "bind", "from host", "taken over", "capture", "finish"),
    *("demote", "drop_device", "drop_host", "delete", "snapshot", "resumed", "given up"),
    *("cancel", "aborted", "short of state_slots", "short of main", "short of host_bytes"),
)
"""What walks must have done, each of it."""


def _drop(ledger: Ledger, owner: Owner, action: CheckpointAction) -> None:
    if action is DELETE:
        ledger.owners.remove(owner)
    elif action is DROP_DEVICE:
        owner.slots = 0
    else:
        owner.image = False
    ledger.tidy()


def _what_if(ledger: Ledger, owner: Owner, action: CheckpointAction) -> Need:
    """What would be free, tried on a copy of the model."""
    place = ledger.owners.index(owner)
    tried = copy.deepcopy(ledger)
    tried.tidy()
    before = tried.free()
    if action is DEMOTE:
        tried.save(tried.owners[place])
        _drop(tried, tried.owners[place], DROP_DEVICE)
    else:
        _drop(tried, tried.owners[place], action)
    freed = [after - was for after, was in zip(tried.free(), before, strict=True)]
    return freed[0], freed[1], 0 if action is DEMOTE else freed[2]
