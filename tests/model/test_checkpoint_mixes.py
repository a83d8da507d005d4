"""Random lives of sequences and checkpoints; every output is what transformers gives for it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
import torch

from ninfer_core.contract.checkpoints import Aborted, CheckpointAction, Plan, ResumeKind
from ninfer_core.contract.resources import CheckpointRef, Shortfall
from ninfer_core.contract.units import UnitKind
from ninfer_core.testing.program_driver import Driven
from tests.model.checkpoint_driver import CheckpointDriver, checkpoint_driver, prompt

TOLERANCE = 5e-3
"""A state or a key out of place moves log-probabilities by far more."""
SEGMENTS = tuple(
    [(11 * k + 7 * i) % 300 for i in range(n)] for k, n in enumerate((1, 2, 31, 40, 63, 64))
)


@dataclass
class Life:
    """One Program under random calls."""

    driver: CheckpointDriver
    random: random.Random
    lanes: int
    rows: list[Driven] = field(default_factory=list)
    kept: list[CheckpointRef] = field(default_factory=list)
    past: list[list[int]] = field(default_factory=list)
    outcomes: list[Driven] = field(default_factory=list)
    reused: int = 0

    def step(self) -> None:
        act = self.random.choices(
            (self.start, self.chunk, self.decode, self.capture, self.finish, self.drop, self.pause),
            (5, 6, 6, 2, 2.5, 0.3, 0.5),
        )[0]
        act()
        self.driver.poison()

    def start(self) -> None:
        if len(self.rows) == self.lanes:
            return
        r = self.random
        ids, points = [], []
        if self.past and r.random() < 0.5:
            ids = list(r.choice(self.past))
            points.append(len(ids))
        for _ in range(r.randint(1, 3)):
            ids += r.choice(SEGMENTS)
            points.append(len(ids))
        if len(ids) > 350:
            return
        prepared = prompt(ids, sorted({*points[:-1], len(ids) - 1} - {0}))
        works = [(ref, self.driver.program.restore_work(ref, prepared)) for ref in self.kept]
        sources = [ref for ref, work in works if work is not None]
        source = r.choice(sources) if sources and r.random() < 0.9 else None
        request = self.driver.request(prepared, source, logprobs=0)
        plan = self.driver.program.plan_bind(request)
        if isinstance(plan, Shortfall):
            self.drop()
            return
        assert isinstance(plan, Plan)
        if r.random() < 0.1:
            transaction = self.driver.program.begin(plan)
            transaction.cancel()
            assert isinstance(transaction.advance(), Aborted)
            return
        self.reused += source is not None
        self.rows.append(self.driver.adopt(request))

    def phase(self, *kinds: UnitKind) -> list[Driven]:
        need = self.driver.program.unit_need
        return [row for row in self.rows if need(row.handle).kind in kinds]

    def room(self, row: Driven) -> bool:
        """Whether its next unit has its pages; else something is given up for them."""
        need = self.driver.program.unit_need(row.handle)
        permit = self.driver.program.reserve(row.handle, need)
        if isinstance(permit, Shortfall):
            if self.kept:
                self.drop()
            else:
                self.end(self.random.choice(self.rows), keep=False)
            return False
        self.driver.program.settle(permit)
        return True

    def chunk(self) -> None:
        waiting = self.phase(UnitKind.PREFILL, UnitKind.REPLAY)
        if waiting:
            row = self.random.choice(waiting)
            if self.room(row):
                self.driver.chunk(row)

    def decode(self) -> None:
        ready = self.phase(UnitKind.DECODE)
        chosen = self.random.sample(ready, self.random.randint(0, len(ready)))
        if chosen and all(self.room(row) for row in chosen):
            self.driver.decode(chosen)
        for row in list(self.rows):
            if len(row.tokens) >= 60:
                self.end(row, keep=True)

    def capture(self) -> None:
        if self.rows:
            row = self.random.choice(self.rows)
            if isinstance(self.driver.program.plan_capture(row.handle), Plan):
                self.kept.append(self.driver.capture(row).checkpoint)

    def finish(self) -> None:
        if self.rows:
            self.end(self.random.choice(self.rows), keep=self.random.random() < 0.8)

    def end(self, row: Driven, *, keep: bool) -> None:
        self.rows.remove(row)
        if keep and self.driver.record(row).frontier:
            self.kept.append(self.driver.keep(row).checkpoint)
        else:
            self.driver.release(row)
        if row.tokens:
            self.outcomes.append(row)
            self.past.append([*row.request.prepared.token_ids.tolist(), *row.tokens])

    def drop(self) -> None:
        if self.kept:
            ref = self.kept.pop(self.random.randrange(len(self.kept)))
            before = self.driver.program.capacity().available
            freed = self.driver.drop(ref, CheckpointAction.DELETE)
            after = self.driver.program.capacity().available
            assert after.state_slots - before.state_slots == freed.state_slots
            assert after.pages["main"] - before.pages["main"] == freed.pages["main"]

    def pause(self) -> None:
        ready = self.phase(UnitKind.DECODE, UnitKind.PREFILL)
        if ready:
            row = self.random.choice(ready)
            kind = self.driver.program.plan_pause(row.handle, ResumeKind.REPLAY)
            assert isinstance(kind, Plan)
            resume = self.driver.pause(row, kind)
            again = replace(row.request, source=resume)
            plan = self.driver.program.plan_bind(again)
            self.rows.remove(row)
            if isinstance(plan, Shortfall):
                self.driver.program.discard(resume)
                return
            self.rows.append(replace(row, handle=self.driver.adopt(again).handle))


@pytest.mark.parametrize(
    ("units", "seed"), [("eager", 1), ("eager", 2), ("queued", 3), ("late", 4)]
)
def test_random_lives_give_what_transformers_gives(build_case, exact_logits, units, seed) -> None:
    case = build_case("untied")
    driver = checkpoint_driver(
        case.model, units, max_concurrency=3, extra_state_slots=4, kv_tokens=26 * 64
    )
    life = Life(driver, random.Random(seed), 3)
    for _ in range(500):
        life.step()
    while life.rows:
        life.end(life.rows[0], keep=False)
    while life.kept:
        life.drop()
    assert driver.program.capacity().available == driver.program.capacity().total
    driver.program.close()
    assert life.reused >= 10
    for row in life.outcomes:
        ids = row.request.prepared.token_ids.tolist()
        law = exact_logits(case, [*ids, *row.tokens])[len(ids) - 1 : -1].log_softmax(-1)
        got = [entry.logprob for entry in row.logprobs]
        want = law.gather(1, torch.tensor(row.tokens)[:, None])[:, 0].tolist()
        assert got == pytest.approx(want, abs=TOLERANCE)
        assert want == pytest.approx(law.amax(-1).tolist(), abs=TOLERANCE)
