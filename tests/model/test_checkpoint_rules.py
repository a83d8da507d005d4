"""Which prompts may begin with a checkpoint, what one holds, and what is never kept."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ninfer_core.contract.checkpoints import (
    Aborted,
    CheckpointAction,
    OutputRules,
    Plan,
    Released,
    RestoreWork,
)
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.media import MediaItem
from ninfer_core.contract.requests import CacheMode
from ninfer_core.contract.resources import CheckpointRef, NeverFits, Shortfall
from ninfer_core.contract.units import DecodeRow, Disposition, RowDecision, RowStatus
from ninfer_qwen3_5.program.checkpoint_replicas import Replicas
from tests.model.checkpoint_driver import kept_end, prompt

DELETE = CheckpointAction.DELETE
STEM = [(7 * i) % 300 for i in range(100)]
WHOLE = [*STEM, 5, 6, 7]


def item(start: int, digest: bytes) -> MediaItem:
    patches = np.zeros((4, 1), np.float32)
    return MediaItem(
        kind="image", digest=digest, grid=(1, 2, 2), token_start=start, rows=1, patches=patches
    )


def shifted(delta: int) -> np.ndarray:
    """Positions that part from counting at token 50."""
    positions = np.tile(np.arange(len(WHOLE), dtype=np.int32), (3, 1))
    positions[1, 50:] += delta
    return positions


def counted() -> np.ndarray:
    return np.tile(np.arange(len(WHOLE), dtype=np.int32), (3, 1))


def test_only_an_equal_beginning_is_taken_over(driver_of) -> None:
    driver = driver_of()
    ref = kept_end(driver, prompt(STEM)).checkpoint
    work = driver.program.restore_work
    layers = driver.program._contexts._state.layers
    page = sum(c.keys[0].nbytes + c.values[0].nbytes for c in layers if hasattr(c, "keys"))
    whole = driver.program._contexts._state.recurrent
    slot = whole.history[:, 0].nbytes + whole.recurrent[:, 0].nbytes
    moved = RestoreWork(bytes=slot + page * 36 // 64, operations=2, tokens=3)
    assert work(ref, prompt(WHOLE)) == moved
    assert work(ref, prompt(WHOLE, positions=counted())) == moved
    assert work(ref, prompt([*STEM, 9])) is not None
    assert work(ref, prompt(WHOLE, media=(item(100, b"later"),))) == moved
    others = [
        prompt(STEM),
        prompt(STEM[:60]),
        prompt([*STEM[:99], 1, 5, 6]),
        prompt([1, *STEM[1:], 5, 6]),
        prompt(WHOLE, template="other"),
        prompt(WHOLE, salt="other"),
        prompt(WHOLE, media=(item(99, b"image"),)),
        prompt(WHOLE, positions=shifted(1)),
        prompt(WHOLE, rope_delta=4),
    ]
    for other in others:
        assert work(ref, other) is None
        with pytest.raises(EngineFailure, match="something else"):
            driver.begin(other, ref)
    driver.poison()


def test_media_and_positions_that_are_equal_are_taken_over(driver_of) -> None:
    """An item past the frontier does not matter; answers go on from the prompt's own positions."""
    driver = driver_of()
    fields = {"positions": shifted(3), "media": (item(20, b"image"),), "rope_delta": -40}
    stem = {**fields, "positions": shifted(3)[:, :100]}
    row = driver.begin(prompt(STEM, **stem))
    driver.generate(row, 4)
    tokens, captured = row.tokens, driver.keep(row)
    assert captured.facts.frontier == 103
    line = np.tile(np.arange(100, 106, dtype=np.int32) - 40, (3, 1))
    positions = np.concatenate([shifted(3)[:, :100], line], axis=1)
    again = [*STEM, *tokens, 8, 9]
    work = driver.program.restore_work
    same = {**fields, "positions": positions}
    assert work(captured.checkpoint, prompt(again, **same)) is not None
    later = {**same, "media": (item(20, b"image"), item(103, b"second"))}
    assert work(captured.checkpoint, prompt(again, **later)) is not None
    plain = np.concatenate([shifted(3)[:, :100], line + 40], axis=1)
    for change in (
        {"positions": plain},
        {"media": (item(20, b"another"),)},
        {"media": (item(21, b"image"),)},
        {"media": ()},
    ):
        assert work(captured.checkpoint, prompt(again, **{**same, **change})) is None


def test_a_prompt_that_is_scored_begins_at_the_root(driver_of) -> None:
    driver = driver_of()
    ref = kept_end(driver, prompt(STEM)).checkpoint
    with pytest.raises(EngineFailure, match="scored"):
        driver.begin(prompt(WHOLE), ref, prompt_logprobs=0)


def test_what_a_deletion_frees_depends_on_who_else_holds_the_pages(driver_of) -> None:
    driver = driver_of()
    program = driver.program
    row = driver.begin(prompt([*STEM, *STEM], [100, 130]))
    made = driver.prefill_capturing(row, [100, 130])
    end = driver.keep(row)
    refs = [made[100].checkpoint, made[130].checkpoint, end.checkpoint]
    assert [program.facts(ref).frontier for ref in refs] == [100, 130, 200]
    assert [program.facts(ref).recovery_frontier for ref in refs] == [0, 100, 130]
    assert [program.actions(ref)[DELETE].pages["main"] for ref in refs] == [0, 0, 1]
    assert [program.actions(ref)[DELETE].state_slots for ref in refs] == [1, 1, 1]
    before = program.capacity().available
    freed = driver.drop(end.checkpoint, DELETE)
    after = program.capacity().available
    assert freed.pages["main"] == after.pages["main"] - before.pages["main"] == 1
    assert after.state_slots - before.state_slots == freed.state_slots == 1
    assert program.actions(refs[1])[DELETE].pages["main"] == 1
    assert driver.drop(refs[0], DELETE).pages["main"] == 0
    assert program.facts(refs[1]).recovery_frontier == 0
    assert driver.drop(refs[1], DELETE).pages["main"] == 3
    assert program.capacity().available == program.capacity().total


def test_what_is_shared_is_not_looked_at_page_by_page(driver_of, monkeypatch) -> None:
    """A restore point at 440 of 500 tokens holds seven pages that the end of the context needs as
    well: the first of them that is looked at tells it."""
    driver, seen = driver_of(), []

    class Watched(tuple):
        def __reversed__(self):
            return watch(self)

    def watch(pages):
        for place in range(len(pages) - 1, -1, -1):
            seen.append(place)
            yield pages[place]

    pages_of = Replicas.pages
    monkeypatch.setattr(Replicas, "pages", lambda *args: Watched(pages_of(*args)))
    row = driver.begin(prompt(STEM * 5, [200, 440]))
    made = driver.prefill_capturing(row, [200, 440])
    driver.keep(row)
    for at in (200, 440):
        seen.clear()
        assert driver.program.actions(made[at].checkpoint)[DELETE].pages["main"] == 0
        assert 1 <= len(seen) <= 2


def test_stale_and_foreign_references_end_the_engine(driver_of) -> None:
    driver, other = driver_of(), driver_of()
    stale = kept_end(driver, prompt(STEM)).checkpoint
    driver.drop(stale, DELETE)
    kept_end(driver, prompt(STEM))
    foreign = kept_end(other, prompt(STEM)).checkpoint
    program = driver.program
    for ref in (stale, foreign, CheckpointRef(1, 99, 1)):
        for call in (
            lambda ref=ref: program.facts(ref),
            lambda ref=ref: program.actions(ref),
            lambda ref=ref: program.drop(ref, DELETE),
            lambda ref=ref: program.restore_work(ref, prompt(WHOLE)),
            lambda ref=ref: program.plan_demote(ref),
            lambda ref=ref: driver.begin(prompt(WHOLE), ref),
        ):
            with pytest.raises(EngineFailure, match="stale"):
                call()
    driver.poison()


@pytest.mark.parametrize("units", ["eager", "queued"])
def test_a_broken_row_is_never_kept_nor_what_was_captured_of_it(driver_of, units) -> None:
    driver = driver_of(units)
    good = driver.begin(prompt(STEM, [40]))
    whole = driver.prefill_capturing(good, [40])[40]
    row = driver.begin(prompt(WHOLE, [40, 80]), whole.checkpoint, lane=1)
    part = driver.prefill_capturing(row, [80])[80]
    assert driver.program.restore_work(part.checkpoint, prompt(WHOLE)) is not None
    record = driver.record(row)
    driver.program._contexts._state.recurrent.recurrent[:, record.slot.index].fill_(float("nan"))
    launched = driver.program.launch_decode(
        [DecodeRow(sequence=row.handle, permit=driver.permit(row))]
    )
    launched.finish()
    pending = launched.collect()
    assert pending.rows[0].status is RowStatus.NONFINITE
    driver.program.commit(pending, [RowDecision(disposition=Disposition.FAILED)])
    assert isinstance(driver.program.plan_capture(row.handle), NeverFits)
    assert isinstance(driver.program.finish(row.handle, keep=True), Released)
    driver.poison()
    assert driver.program.restore_work(part.checkpoint, prompt(WHOLE)) is None
    assert driver.program.restore_work(whole.checkpoint, prompt(WHOLE)) is None
    assert driver.program.facts(part.checkpoint).recovery_frontier == 0
    driver.generate(good, 5)
    assert driver.program.restore_work(driver.keep(good).checkpoint, prompt(WHOLE)) is None
    for captured in (part, whole):
        driver.drop(captured.checkpoint, DELETE)


@pytest.mark.parametrize("off", ["budget", "request"])
def test_without_checkpoints_prompts_are_cut_as_ever_and_nothing_is_kept(driver_of, off) -> None:
    driver = driver_of(keep_checkpoints=off != "budget")
    mode = CacheMode.DISABLED if off == "request" else CacheMode.READ_WRITE
    row = driver.begin(prompt(WHOLE, [10, 70, 100], mode=mode))
    sizes = []
    while not row.tokens:
        sizes.append(driver.program.unit_need(row.handle).tokens)
        driver.chunk(row)
    assert sizes == [64, 39]
    assert isinstance(driver.program.plan_capture(row.handle), NeverFits)
    assert isinstance(driver.program.finish(row.handle, keep=True), Released)
    assert driver.program.capacity().available == driver.program.capacity().total


def test_chunks_end_at_restore_points_and_at_multiples(driver_of) -> None:
    driver = driver_of()
    row = driver.begin(prompt(WHOLE, [10, 64, 70, 102]))
    sizes = []
    while not row.tokens:
        sizes.append(driver.program.unit_need(row.handle).tokens)
        driver.chunk(row)
    assert sizes == [10, 54, 6, 32, 1]


def test_slots_and_pages_that_are_lacking_are_named_and_nothing_is_held(driver_of) -> None:
    driver = driver_of(max_concurrency=1, extra_state_slots=1, max_context=128, kv_tokens=128)
    row = driver.begin(prompt(STEM))
    assert isinstance(driver.program.plan_capture(row.handle), NeverFits)
    driver.chunk(row)
    captured = driver.capture(row)
    before = driver.program.capacity()
    assert driver.program.plan_capture(row.handle) == Shortfall("state_slots", 1, 0)
    assert driver.program.capacity() == before
    driver.prefill(row)
    end = driver.keep(row)
    driver.drop(captured.checkpoint, DELETE)
    source = dataclasses.replace(row.request, prepared=prompt(WHOLE), source=end.checkpoint)
    assert driver.program.plan_bind(source) == Shortfall("main", 1, 0)
    assert driver.program.capacity().available.pages["main"] == 0
    driver.drop(end.checkpoint, DELETE)
    assert driver.program.capacity().available == driver.program.capacity().total


def test_a_cancelled_bind_or_capture_changes_nothing(driver_of) -> None:
    driver = driver_of()
    program = driver.program
    ref = kept_end(driver, prompt(STEM)).checkpoint
    row = driver.begin(prompt(STEM), lane=1)
    driver.prefill(row)
    request = dataclasses.replace(
        row.request, prepared=prompt(WHOLE), source=ref, rules=OutputRules(max_new_tokens=4)
    )
    before = program.capacity()
    for plan in (program.plan_bind(request), program.plan_capture(row.handle)):
        assert isinstance(plan, Plan)
        transaction = program.begin(plan)
        transaction.cancel()
        assert isinstance(transaction.advance(), Aborted)
        driver.poison()
        assert program.capacity() == before
    again = driver.adopt(request)
    assert len(driver.generate(again, 4)) == 4


def test_room_that_went_between_plan_and_start_ends_in_aborted(driver_of) -> None:
    driver = driver_of(max_concurrency=2, extra_state_slots=0)
    row = driver.begin(prompt(STEM))
    driver.prefill(row)
    plan = driver.program.plan_capture(row.handle)
    assert isinstance(plan, Plan)
    driver.begin(prompt(STEM), lane=1)
    transaction = driver.program.begin(plan)
    assert isinstance(transaction.advance(), Aborted)
    driver.poison()


def test_close_deletes_every_checkpoint(driver_of) -> None:
    driver = driver_of()
    ref = kept_end(driver, prompt(STEM)).checkpoint
    row = driver.begin(prompt(WHOLE), ref)
    driver.prefill(row)
    driver.program.close()
    assert driver.program.capacity().available == driver.program.capacity().total
    driver.program.check()
    with pytest.raises(EngineFailure, match="stale"):
        driver.program.facts(ref)
