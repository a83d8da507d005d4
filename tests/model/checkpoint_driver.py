"""Drives a Program with checkpoints; whatever is free or not yet final holds NaN between steps."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from ninfer_core.contract.checkpoints import (
    BindRequest,
    Captured,
    OutputRules,
    Plan,
    ResumeKind,
)
from ninfer_core.contract.events import Channel, ReuseReason
from ninfer_core.contract.frontend import (
    PreparedPrompt,
    PromptIdentity,
    RestoreKind,
    RestorePoint,
)
from ninfer_core.contract.instance import Budget
from ninfer_core.contract.requests import CacheMode, CacheRequest, PromptInput
from ninfer_core.contract.resources import CheckpointRef
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.contract.units import ControlRow, Disposition, PendingBatch, RowDecision, UnitKind
from ninfer_core.device.cpu import open_device
from ninfer_core.testing.program_driver import Driven, ProgramDriver
from ninfer_qwen3_5.program.assemble import generation_program
from tests.model.late_device import LateDevice

NAN = float("nan")
GREEDY = SamplingParams(temperature=0.0, seed=0)
SIZES = {
    "max_context": 512,
    "max_concurrency": 4,
    "prefill_chunk": 64,
    "extra_state_slots": 8,
    "keep_checkpoints": True,
}


def prompt(
    token_ids: Sequence[int],
    points: Sequence[int] = (),
    *,
    template: str = "tokens",
    salt: str | None = None,
    mode: CacheMode = CacheMode.READ_WRITE,
    **fields: Any,
) -> PreparedPrompt:
    """A prompt of exactly these tokens with these restore points."""
    ids = np.asarray(token_ids, dtype=np.int32)
    prepared = PreparedPrompt(
        token_ids=ids,
        positions=None,
        rope_delta=0,
        media=(),
        identity=PromptIdentity(hashlib.sha256(ids.tobytes()).digest(), (), template, salt),
        restore_points=tuple(RestorePoint(point, RestoreKind.EXPLICIT) for point in points),
        starts_in=Channel.CONTENT,
        grammar=None,
        request=PromptInput(token_ids=tuple(token_ids), cache=CacheRequest(mode=mode)),
    )
    return dataclasses.replace(prepared, **fields)


class CheckpointDriver(ProgramDriver):
    """After every step the ledgers are checked, and memory that nobody may read is poisoned."""

    def begin(
        self,
        prepared: PreparedPrompt,
        source: CheckpointRef | None = None,
        *,
        sampling: SamplingParams = GREEDY,
        lane: int = 0,
        **rules: Any,
    ) -> Driven:
        return self.adopt(self.request(prepared, source, sampling=sampling, lane=lane, **rules))

    def request(
        self,
        prepared: PreparedPrompt,
        source: CheckpointRef | None = None,
        *,
        sampling: SamplingParams = GREEDY,
        lane: int = 0,
        **rules: Any,
    ) -> BindRequest:
        self._order += 1
        return BindRequest(
            lane=lane,
            prepared=prepared,
            sampling=sampling,
            rules=OutputRules(**{"max_new_tokens": 100, "logprobs": 2, **rules}),
            publication_order=self._order,
            source=source,
            source_reason=ReuseReason.SHARED_CHECKPOINT if source else ReuseReason.NO_MATCH,
        )

    def capture(self, row: Driven) -> Captured:
        plan = self.program.plan_capture(row.handle)
        assert isinstance(plan, Plan), plan
        captured = self._settle_transaction(plan)
        assert isinstance(captured, Captured)
        return captured

    def keep(self, row: Driven) -> Captured:
        captured = self.program.finish(row.handle, keep=True)
        self.poison()
        assert isinstance(captured, Captured), captured
        return captured

    def drop(self, ref: CheckpointRef, action: Any) -> Any:
        freed = self.program.drop(ref, action)
        self.poison()
        return freed

    def release(self, row: Driven) -> None:
        self.finish(row)
        self.poison()

    def prefill_capturing(self, row: Driven, frontiers: Sequence[int]) -> dict[int, Captured]:
        """Run the prompt; checkpoints at those of its restore points that were asked for."""
        made: dict[int, Captured] = {}
        while self.program.unit_need(row.handle).kind is UnitKind.PREFILL:
            at = self.record(row).frontier
            if at in frontiers:
                made[at] = self.capture(row)
            self.chunk(row)
        return made

    def force(self, row: Driven, tokens: Sequence[int]) -> None:
        """One control unit."""
        permit = self.permit(row, len(tokens))
        control = ControlRow(sequence=row.handle, permit=permit, token_ids=tuple(tokens))
        pending = self.program.launch_control([control]).collect()
        assert isinstance(pending, PendingBatch)
        accept = RowDecision(disposition=Disposition.ACCEPT, accepted=len(tokens))
        self.program.commit(pending, [accept])
        row.tokens += tokens
        self.poison()

    def resumed(self, row: Driven) -> Driven:
        """The sequence after a pause and a replay of all that it had run."""
        plan = self.program.plan_pause(row.handle, ResumeKind.REPLAY)
        assert isinstance(plan, Plan), plan
        resume = self.pause(row, plan)
        back = self.adopt(dataclasses.replace(row.request, source=resume))
        back.tokens, back.logprobs = row.tokens, row.logprobs
        while self.program.unit_need(back.handle).kind is UnitKind.REPLAY:
            self.chunk(back)
        return back

    def record(self, row: Driven) -> Any:
        return self.program._contexts.sequences.get(row.handle)

    def state_of(self, row: Driven) -> list[Any]:
        """Copies of the recurrent state, and of the keys and values below the frontier."""
        record, state = self.record(row), self.program._contexts._state
        whole, slot = state.recurrent, record.slot.index
        kept = [whole.history[:, slot].clone(), whole.recurrent[:, slot].clone()]
        spaces = self.program._stores.context.spaces["main"]
        pages = list(spaces.page_ids(record.history.spaces["main"]))
        for cache in state.caches:
            rows = [plane[pages].flatten(0, 1) for plane in (cache.keys, cache.values)]
            kept += [row[: record.frontier].clone() for row in rows]
        return kept if state.hidden is None else [*kept, state.hidden[slot].clone()]

    def poison(self) -> None:
        """NaN into free pages and slots, spare slots and columns that are not final."""
        self.program.check()
        stores, state = self.program._stores, self.program._contexts._state
        spaces, slots = stores.context.spaces["main"], list(stores.slots.pool._free)
        for record in self.program._contexts.sequences.values():
            slots += [slot.index for slot in record.ring if slot is not record.slot]
        for whole in (state.recurrent.history, state.recurrent.recurrent):
            whole[:, slots] = NAN
        if state.hidden is not None:
            state.hidden[slots] = NAN
        for cache in state.caches:
            for plane in (cache.keys, cache.values):
                plane[list(spaces.pool._free)] = NAN
                for page in spaces.pages.live_pages():
                    plane[page.device.location.index, page.committed :] = NAN

    def _settle_transaction(self, plan: Plan) -> object:
        result = super()._settle_transaction(plan)
        self.poison()
        return result

    def _finish(self, launched: Any, members: Any) -> None:
        super()._finish(launched, members)
        self.poison()


def checkpoint_driver(
    model: Any, units: str, drafting: Any = None, **sizes: Any
) -> CheckpointDriver:
    """``units``: eager, queued, or late for queued ones on a late device."""
    budget = Budget(**{**SIZES, **sizes})
    device = LateDevice() if units == "late" else open_device()
    held = None if units == "eager" else ExitStack()
    if isinstance(device, LateDevice):
        assert held is not None
        held.enter_context(device.mode)
    program, _ = generation_program(model, budget, device, held=held, drafting=drafting)
    if isinstance(device, LateDevice):
        device.make_late(program)
    return CheckpointDriver(program)


def kept_end(driver: CheckpointDriver, prepared: PreparedPrompt, produced: int = 1) -> Captured:
    """The end of a prompt and its first produced tokens."""
    row = driver.begin(prepared)
    driver.generate(row, produced)
    return driver.keep(row)
