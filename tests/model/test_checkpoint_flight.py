"""Checkpoints while units are in flight, after breaks, and what a chunk leaves behind."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ninfer_core.contract.checkpoints import (
    CheckpointAction,
)
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.resources import NeverFits
from ninfer_core.contract.units import DecodeRow, Disposition, RowDecision
from tests.model.checkpoint_driver import kept_end, prompt

DELETE = CheckpointAction.DELETE
STEM = [(7 * i) % 300 for i in range(100)]
WHOLE = [*STEM, 5, 6, 7]


@pytest.mark.parametrize("units", ["queued", "late"])
def test_ends_are_kept_and_adopted_while_a_round_is_in_flight(driver_of, units) -> None:
    """One row ended; its end becomes a source while the other row's round is not collected."""
    plain, driver = driver_of(), driver_of(units)
    results = []
    for one in (plain, driver):
        rows = [one.begin(prompt(STEM[:n]), lane=i) for i, n in enumerate((63, 90))]
        for row in rows:
            one.prefill(row)
        one.decode(rows)
        flying = None
        if one is driver:
            permit = one.permit(rows[1])
            flying = one.program.launch_decode([DecodeRow(sequence=rows[1].handle, permit=permit)])
            flying.finish()
        captured = one.program.finish(rows[0].handle, keep=True)
        whole = prompt([*STEM[:63], *rows[0].tokens, 4, 4])
        plan = one.program.plan_bind(
            dataclasses.replace(rows[0].request, prepared=whole, source=captured.checkpoint)
        )
        bound = one.program.begin(plan).advance()
        if flying is None:
            one.decode(rows[1:])
        else:
            pending = flying.collect()
            accept = RowDecision(disposition=Disposition.ACCEPT, accepted=1)
            one.program.commit(pending, [accept])
            rows[1].tokens += pending.rows[0].token_ids
            rows[1].logprobs += pending.rows[0].logprobs
        one.poison()
        rows[0] = dataclasses.replace(rows[0], handle=bound.sequence, tokens=[], logprobs=[])
        one.prefill(rows[0])
        for _ in range(5):
            one.decode(rows)
        results.append([(row.tokens, row.logprobs) for row in rows])
    assert results[0] == results[1]


def test_a_break_after_a_resume_reaches_what_was_captured_before_the_pause(driver_of) -> None:
    driver = driver_of()
    row = driver.begin(prompt(STEM))
    driver.generate(row, 2)
    captured = driver.capture(row)
    back = driver.resumed(row)
    driver.record(back).fail()
    assert driver.program.restore_work(captured.checkpoint, prompt([*STEM, *row.tokens])) is None


class CopiesOf(TorchDispatchMode):
    """Counts copies that read a tensor's memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self._range = range(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)
        self.to_others = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default and args[1].data_ptr() in self._range:
            self.to_others += bool(len(args) == 3 and args[2])
        return func(*args, **(kwargs or {}))


def test_a_chunk_leaves_no_copy_of_a_table_that_may_change_hands(driver_of) -> None:
    """Nobody waits for a chunk, and its row may pass to a sequence over shared pages: what the
    device still has to copy must not be that row's own memory."""
    driver = driver_of("queued")
    tables = driver.program._units._lanes.host_tables
    row = driver.begin(prompt(STEM))
    with CopiesOf(tables) as copies:
        driver.chunk(row)
    assert copies.to_others == 0
    assert int(tables[driver.record(row).row, 0]) >= 0


def test_only_a_deletion_is_done_at_once(driver_of) -> None:
    driver = driver_of()
    ref = kept_end(driver, prompt(STEM)).checkpoint
    assert list(driver.program.actions(ref)) == [DELETE]
    for action in (CheckpointAction.DROP_DEVICE, CheckpointAction.DEMOTE):
        with pytest.raises(EngineFailure, match="not among"):
            driver.program.drop(ref, action)
    assert isinstance(driver.program.plan_demote(ref), NeverFits)
