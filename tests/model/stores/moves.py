"""Steps of a walk that move something: binds, demotions, pauses, resumes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ninfer_core.contract.checkpoints import (
    BindRequest,
    Bound,
    Demoted,
    OutputRules,
    Paused,
    ResumeKind,
)
from ninfer_core.contract.resources import NeverFits
from ninfer_core.contract.sampling import SamplingParams
from tests.model.checkpoint_driver import prompt
from tests.model.stores.base import LANES, Need, Row, Walk
from tests.model.stores.ledger import RING, Owner, Page, pages_of
from tests.model.stores.units import BYTES, VOCAB

BASES = [[(7 * at + step * at * at) % VOCAB for at in range(150)] for step in (1, 3)]


class Moves(Walk):
    """Each begins a transaction, which this or a later step settles."""

    def start(self) -> None:
        base = self.random.choice(BASES)
        self._bind([*base[: self.random.randint(1, 150)], self.random.randrange(VOCAB)], None)

    def adopt(self, consume: bool = False) -> None:
        ref = self._pick(self.kept)
        if ref is not None and not self._moves(ref):
            more = [self.random.randrange(VOCAB) for _ in range(self.random.randint(1, 30))]
            self._bind([*self.kept[ref].tokens, *more], ref, consume)

    def take_over(self) -> None:
        self.adopt(consume=True)

    def demote(self) -> None:
        ref = self._pick(self.kept)
        if ref is None or self.moving is not None:
            return
        owner = self.kept[ref]
        plan = self.program.plan_demote(ref)
        if owner.image:
            assert plan == NeverFits("host_bytes", 1, 0)
            return
        need = (0, 0, BYTES * (1 + len(self.ledger.unsaved(owner))))
        if self._refused(plan, need):
            return

        def apply(result: Any) -> None:
            assert isinstance(result, Demoted)
            self.ledger.save(owner)
            self.done["demote"] += 1

        self._open(plan, ref, owner, need, apply)

    def pause(self) -> None:
        row = self._pick(self.rows)
        if row is None or self.moving is not None:
            return
        need = (0, 0, BYTES * (1 + len(self.ledger.unsaved(row.owner))))
        plan = self.program.plan_pause(row.handle, ResumeKind.SNAPSHOT)
        if self._refused(plan, need) or self.random.random() < 0.3:
            plan = self.program.plan_pause(row.handle, ResumeKind.REPLAY)
            self._replay(row, self.program.begin(plan).advance().resume)
            self.done["replay"] += 1
            return

        def apply(result: Any) -> None:
            assert isinstance(result, Paused)
            self.rows.remove(row)
            owner = row.owner
            self.ledger.save(owner)
            owner.runs, owner.slots = False, 0
            owner.pages = owner.pages[: pages_of(row.frontier)]
            self.snapshots[result.resume] = row
            self.done["snapshot"] += 1

        self._open(plan, row, row.owner, need, apply)

    def resume(self) -> None:
        waiting = {**self.snapshots, **self.replays}
        resume = self._pick(waiting)
        if resume is None or self.moving is not None or len(self.rows) >= LANES:
            return
        row, snapshot = waiting[resume], resume in self.snapshots
        reach, owner = self._reach(row), row.owner
        pages = max(0, pages_of(reach) - len(owner.pages))
        pages += sum(not page.device for page in owner.pages)
        pages += not self.ledger.own_tail(owner, row.frontier)
        request = replace(row.request, source=resume)
        plan = self.program.plan_bind(request)
        if self._refused(plan, (RING, pages, 0)):
            return

        def apply(result: Any) -> None:
            assert isinstance(result, Bound)
            (self.snapshots if snapshot else self.replays).pop(resume)
            if not snapshot:
                self.ledger.owners.append(owner)
            row.request, row.handle, row.reached = request, result.sequence, max(row.reached, 0)
            for page in owner.pages:
                page.device = True
            self._run_on(owner)
            self.ledger.grow(owner, pages_of(reach))
            owner.image, owner.fronts = False, reach
            self.rows.append(row)
            self.done["resumed"] += 1

        self._open(plan, row, owner, (RING, pages, 0), apply)

    def give_up(self) -> None:
        """Revoke or discard what is paused."""
        resume = self._pick(self.snapshots)
        if resume is None or self._moves(self.snapshots[resume]):
            return
        row = self.snapshots.pop(resume)
        if self.random.random() < 0.5:
            self.program.discard(resume)
            self.ledger.owners.remove(row.owner)
        else:
            self.ledger.owners.remove(row.owner)
            self._forget(row)
            self.replays[self.program.revoke(resume)] = row
        self.done["given up"] += 1

    def _bind(self, tokens: list[int], ref: Any, consume: bool = False) -> None:
        if self.moving is not None or len(self.rows) >= LANES or len(tokens) > 190:
            return
        self._order += 1
        points = self.random.sample(range(1, len(tokens)), min(2, len(tokens) - 1))
        request = BindRequest(
            lane=0,
            prepared=prompt(tokens, sorted(points)),
            sampling=SamplingParams(temperature=0.0, seed=0),
            rules=OutputRules(max_new_tokens=20),
            publication_order=self._order,
            source=ref,
            consume=consume,
        )
        source = None if ref is None else self.kept[ref]
        plan = self.program.plan_bind(request)
        if consume and source is not None and not source.slots:
            assert plan == NeverFits("sole holders of the checkpoint", 1, 0)
            return
        need = self._adoption(source, consume)
        if self._refused(plan, need):
            return

        def apply(result: Any) -> None:
            assert isinstance(result, Bound)
            owner = self._beginning(source, ref, consume)
            self.rows.append(Row(request, owner, result.sequence))
            self.done["taken over" if consume else "from host" if loads else "bind"] += 1

        loads = source is not None and not source.slots
        self._open(plan, ref, source or Owner([], []), need, apply)

    def _adoption(self, source: Owner | None, consume: bool) -> Need:
        if source is None:
            return RING, 0, 0
        tail = len(source.tokens) % 64 > 0
        if consume:
            return RING - 1, int(not self.ledger.own_tail(source, len(source.tokens))), 0
        return RING, sum(not page.device for page in source.pages) + tail, 0

    def _beginning(self, source: Owner | None, ref: Any, consume: bool) -> Owner:
        if source is None:
            owner = Owner([], [])
        elif consume:
            owner = source
            del self.kept[ref]
            self.ledger.owners.remove(owner)
            self.ledger.owners.append(owner)
            self._run_on(owner)
            owner.image = False
            return owner
        else:
            for page in source.pages:
                page.device = True
            full = len(source.tokens) // 64
            tail = [Page()] if len(source.tokens) % 64 else []
            owner = Owner(list(source.tokens), [*source.pages[:full], *tail])
        owner.slots, owner.runs = RING, True
        self.ledger.owners.append(owner)
        return owner

    def _replay(self, row: Row, resume: Any) -> None:
        self.rows.remove(row)
        self.ledger.owners.remove(row.owner)
        self._forget(row)
        self.replays[resume] = row
