"""Drives a Program with a host tier; free host memory holds garbage between steps as well."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ninfer_core.contract.checkpoints import (
    Bound,
    Paused,
    Plan,
    ResumeKind,
    ResumeState,
    Transaction,
)
from ninfer_core.contract.instance import Budget
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.device.cpu import open_device
from ninfer_core.testing.program_driver import Driven
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.assemble import generation_program
from ninfer_qwen3_5.program.drafting import Drafting
from tests.model.checkpoint_driver import NAN, SIZES, CheckpointDriver, prompt
from tests.model.late_copies import LateCopies

GARBAGE = 0xC3
DRAWN = SamplingParams(
    temperature=0.9, top_k=40, top_p=0.95, seed=11, repetition_penalty=1.2, frequency_penalty=0.1
)
KINDS = [("eager", None), ("queued", None), ("queued", 3)]
"""Units, and how late copies are."""
COUNT = 30
"""Tokens that tests produce."""


class SnapshotDriver(CheckpointDriver):
    """See the module."""

    @property
    def snapshots(self) -> Any:
        return self.program._contexts.snapshots

    @property
    def transfers(self) -> Any:
        return self.snapshots.tier.transfers

    def plan_snapshot(self, row: Driven) -> Plan:
        plan = self.program.plan_pause(row.handle, ResumeKind.SNAPSHOT)
        assert isinstance(plan, Plan), plan
        return plan

    def begin_pause(self, row: Driven) -> Transaction:
        return self.program.begin(self.plan_snapshot(row))

    def begin_resume(self, row: Driven, resume: ResumeState, lane: int = 0) -> Transaction:
        request = dataclasses.replace(row.request, source=resume, lane=lane)
        plan = self.program.plan_bind(request)
        assert isinstance(plan, Plan), plan
        return self.program.begin(plan)

    def step(self, transaction: Transaction) -> Any:
        result = transaction.advance()
        self.poison()
        return result

    def settle(self, transaction: Transaction) -> Any:
        result = self.step(transaction)
        while result is None:
            result = self.step(transaction)
        return result

    def snapshot(self, row: Driven) -> ResumeState:
        result = self.settle(self.begin_pause(row))
        assert isinstance(result, Paused), result
        return result.resume

    def restore(self, row: Driven, resume: ResumeState, lane: int = 0) -> Driven:
        return self.bound(row, self.settle(self.begin_resume(row, resume, lane)))

    def bound(self, row: Driven, result: Any) -> Driven:
        """The same sequence under its new handle."""
        assert isinstance(result, Bound), result
        row.handle = result.sequence
        return row

    def host_free(self) -> int:
        return self.program.capacity().available.host_bytes

    def poison(self) -> None:
        """As for checkpoints, pages that lie on the host alone aside; garbage into free extents."""
        self.program.check()
        stores, state = self.program._stores, self.program._contexts._state
        spaces, slots = stores.context.spaces["main"], list(stores.slots.pool._free)
        for record in self.program._contexts.sequences.values():
            slots += [slot.index for slot in record.ring if slot is not record.slot]
        for whole in (state.recurrent.history, state.recurrent.recurrent):
            whole[:, slots] = NAN
        on_device = [page for page in spaces.pages.live_pages() if page.device is not None]
        if state.hidden is not None:
            state.hidden[slots] = NAN
        for cache in state.caches:
            for plane in (cache.keys, cache.values):
                plane[list(spaces.pool._free)] = NAN
                for page in on_device:
                    plane[page.device.location.index, page.committed :] = NAN
        if self.snapshots is not None:
            for offset, size in stores.context.arena._size_at.items():
                self.transfers._host[offset : offset + size] = GARBAGE


def snapshot_driver(
    model: TextModel,
    units: str,
    *,
    lag: int | None = None,
    drafting: Drafting | None = None,
    **sizes: Any,
) -> SnapshotDriver:
    """``units``: eager or queued. With a ``lag`` copies are late (``LateCopies``)."""
    budget = Budget(**{**SIZES, "host_bytes": 1 << 20, **sizes})
    device = open_device() if lag is None else LateCopies(lag)
    if isinstance(device, LateCopies):
        model = TextModel(model.config, model.parameters, device.ops(model.ops), model.addressable)
    held = None if units == "eager" else ExitStack()
    program, _ = generation_program(model, budget, device, held=held, drafting=drafting)
    return SnapshotDriver(program)


@contextmanager
def snapshot_drivers(build_case: Any) -> Iterator[Callable[..., SnapshotDriver]]:
    """Makes drivers; in the end all of them close and hold nothing."""
    made: list[SnapshotDriver] = []

    def build(
        units: str = "eager", lag: int | None = None, case: str = "tied", **sizes: int
    ) -> SnapshotDriver:
        made.append(snapshot_driver(build_case(case).model, units, lag=lag, **sizes))
        return made[-1]

    yield build
    for driver in made:
        driver.program.close()
        assert_empty(driver)


def tokens(seed: int, count: int) -> list[int]:
    r = random.Random(seed)
    return [r.randrange(300) for _ in range(count)]


def assert_empty(driver: SnapshotDriver) -> None:
    capacity = driver.program.capacity()
    assert (capacity.available, capacity.resident) == (capacity.total, 0)
    driver.program.check()
    stores = driver.program._stores
    assert stores.context.idle
    assert sorted(stores._free_rows) == list(range(stores.rows))


def undisturbed(driver: SnapshotDriver, ids: list[int], sampling=DRAWN, count: int = COUNT):
    row = driver.begin(prompt(ids), sampling=sampling)
    driver.generate(row, count)
    driver.release(row)
    return row.tokens, row.logprobs
