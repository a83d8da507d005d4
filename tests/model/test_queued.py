"""Units on a queue (captured rounds, rings, launch-ahead) against units that run when asked.

The CPU device replays a captured body by calling it, so that everything but the kernels is the
code that runs on a GPU.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ninfer_core.contract.checkpoints import OutputRules
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.frontend import ColumnState
from ninfer_core.contract.instance import Budget
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.contract.units import DecodeRow, Disposition, RowDecision, RowStatus
from ninfer_core.device.cpu import open_device
from ninfer_core.testing.program_driver import ProgramDriver
from ninfer_qwen3_5.program.assemble import generation_program

DRAWN = SamplingParams(
    temperature=0.9, top_k=40, top_p=0.95, seed=11, repetition_penalty=1.2, frequency_penalty=0.1
)
GREEDY = SamplingParams(temperature=0.0, seed=0)
PROMPTS = [[3, 1, 4, 1, 5], list(range(7, 90)), [9, 8], list(range(20, 84))]


@pytest.fixture
def drivers(build_case):
    """A driver over each kind of units for the same model."""
    case = build_case("untied")
    made = []

    def build(**budget: int) -> tuple[ProgramDriver, ProgramDriver]:
        sizes = {"max_context": 256, "max_concurrency": 4, "prefill_chunk": 32} | budget
        for held in (None, ExitStack()):
            program, _ = generation_program(case.model, Budget(**sizes), open_device(), held=held)
            made.append(program)
        return ProgramDriver(made[-2]), ProgramDriver(made[-1])

    yield build
    for program in made:
        program.close()


def start(driver, sampling, rules=None, prompts=PROMPTS):
    rows = [driver.bind(prompt, sampling, rules, lane=i) for i, prompt in enumerate(prompts)]
    for row in rows:
        driver.prefill(row)
    return rows


def accept(count: int) -> list[RowDecision]:
    return [RowDecision(disposition=Disposition.ACCEPT, accepted=1)] * count


def ahead(driver, rows, behind):
    """Launch a round behind one that is not collected."""
    wanted = [DecodeRow(sequence=row.handle, permit=driver.permit(row)) for row in rows]
    launched = driver.program.launch_decode(wanted, ahead_of=behind)
    launched.finish()
    return launched


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_rounds_in_order_give_the_same_tokens_and_logprobs(drivers, sampling) -> None:
    rules = OutputRules(max_new_tokens=64, logprobs=3, prompt_logprobs=2)
    results = []
    for driver in drivers():
        rows = start(driver, sampling, rules)
        for turn in range(40):
            driver.decode(rows if turn % 3 else rows[::-1])
        results.append([(row.tokens, row.logprobs, row.scored) for row in rows])
        driver.program.check()
    assert results[0] == results[1]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_rounds_launched_ahead_give_the_same_tokens(drivers, sampling, again) -> None:
    """Also where a round whose rows have room is launched again without permits."""
    eager, queued = drivers()
    expected = start(eager, sampling)
    for _ in range(30):
        eager.decode(expected)
    rows = start(queued, sampling)
    flying = ahead(queued, rows, None)
    repeated = 0
    for _ in range(29):
        if again and queued.program.has_room_again(flying):
            following = queued.program.launch_again(flying)
            following.finish()
            repeated += 1
        else:
            following = ahead(queued, rows, flying)
        pending = flying.collect()
        queued.program.commit(pending, accept(len(rows)))
        for row, produced in zip(rows, pending.rows, strict=True):
            row.tokens += produced.token_ids
        queued.program.check()
        flying = following
    pending = flying.collect()
    queued.program.commit(pending, accept(len(rows)))
    for row, produced in zip(rows, pending.rows, strict=True):
        row.tokens += produced.token_ids
    assert [row.tokens for row in rows] == [row.tokens for row in expected]
    crossed = {-(-len(prompt) // 64) * 64 for prompt in PROMPTS if len(prompt) % 64 + 31 > 64}
    assert repeated == again * (29 - len(crossed)), "a round without a page more is launched again"


def test_a_round_is_not_launched_again_where_a_page_is_lacking(drivers) -> None:
    """The round in flight executes token 63 of its page, the one behind it token 64."""
    eager, queued = drivers()
    assert not eager.program.has_room_again(
        ahead(eager, start(eager, GREEDY, prompts=[[1, 2]]), None)
    ), "nothing runs ahead there"
    (row,) = start(queued, GREEDY, prompts=[[5] * 62])
    flying = ahead(queued, [row], None)
    assert queued.program.has_room_again(flying)
    following = queued.program.launch_again(flying)
    following.finish()
    assert not queued.program.has_room_again(following)
    for unit in (flying, following):
        queued.program.commit(unit.collect(), accept(1))
    queued.program.check()


def test_a_row_that_ended_is_void_ahead_and_the_others_go_on(drivers) -> None:
    eager, queued = drivers()
    expected = start(eager, DRAWN)
    eager.decode(expected)
    eager.decode(expected[1:])
    eager.decode(expected[1:])
    rows = start(queued, DRAWN)
    first = ahead(queued, rows, None)
    second = ahead(queued, rows, first)
    pending = first.collect()
    queued.program.commit(pending, accept(4))
    tokens = [[*row.tokens, *got.token_ids] for row, got in zip(rows, pending.rows, strict=True)]
    third = ahead(queued, rows[1:], second)
    pending = second.collect()
    void = RowDecision(disposition=Disposition.VOID)
    queued.program.commit(pending, [void, *accept(3)])
    queued.finish(rows[0])
    queued.program.check()
    for index in (1, 2, 3):
        tokens[index] += pending.rows[index].token_ids
    pending = third.collect()
    queued.program.commit(pending, accept(3))
    for index in (1, 2, 3):
        tokens[index] += pending.rows[index - 1].token_ids
    assert tokens == [row.tokens for row in expected]


def test_aborted_rounds_leave_no_trace(drivers) -> None:
    """Two rounds in flight, rolled back last one first; then the same tokens come again."""
    eager, queued = drivers()
    expected = start(eager, DRAWN)
    for _ in range(12):
        eager.decode(expected)
    rows = start(queued, DRAWN)
    first = ahead(queued, rows, None)
    second = ahead(queued, rows, first)
    before, after = first.collect(), second.collect()
    queued.program.abort(after)
    queued.program.abort(before)
    queued.program.check()
    for _ in range(12):
        queued.decode(rows)
    assert [row.tokens for row in rows] == [row.tokens for row in expected]


class OnlyEven:
    """Allows even token ids, and nothing at all once it is told to."""

    def __init__(self) -> None:
        self.dead = False

    def fill(self, drafts, out):
        out[:] = 0 if self.dead else 0x55555555
        return [ColumnState.DEAD_END if self.dead else ColumnState.READY]


def test_masks_hold_for_their_row_and_a_dead_end_is_that_rows_alone(drivers) -> None:
    results = []
    for driver in drivers():
        rows = start(driver, DRAWN)
        masks = OnlyEven()
        for turn in range(6):
            masks.dead = turn == 5
            wanted = [
                DecodeRow(
                    sequence=row.handle,
                    permit=driver.permit(row),
                    masks=masks if index == 1 else None,
                )
                for index, row in enumerate(rows)
            ]
            launched = driver.program.launch_decode(wanted)
            launched.finish()
            pending = launched.collect()
            statuses = [row.status for row in pending.rows]
            expected = RowStatus.DEAD_END if masks.dead else RowStatus.OK
            assert statuses == [RowStatus.OK, expected, RowStatus.OK, RowStatus.OK]
            if not masks.dead:
                assert pending.rows[1].token_ids[0] % 2 == 0
            driver.program.commit(pending, accept(4))
            for row, got in zip(rows, pending.rows, strict=True):
                row.tokens += got.token_ids[: row is not rows[1] or not masks.dead]
        results.append([row.tokens for row in rows])
    assert results[0] == results[1]


def test_a_broken_row_is_reported_alone(drivers, build_case) -> None:
    _, queued = drivers()
    rows = start(queued, GREEDY)
    contexts = queued.program._contexts
    sequence = contexts.sequences.get(rows[2].handle)
    contexts._state.recurrent.recurrent[:, sequence.slot.index].fill_(float("nan"))
    launched = queued.program.launch_decode(
        [DecodeRow(sequence=row.handle, permit=queued.permit(row)) for row in rows]
    )
    statuses = [row.status for row in launched.collect().rows]
    assert statuses == [RowStatus.OK, RowStatus.OK, RowStatus.NONFINITE, RowStatus.OK]


def test_a_round_with_a_foreign_number_is_an_engine_failure(drivers) -> None:
    _, queued = drivers()
    rows = start(queued, GREEDY)
    ring = queued.program._units._rounds._ring
    ring.ring.counter.add_(4)
    launched = queued.program.launch_decode(
        [DecodeRow(sequence=row.handle, permit=queued.permit(row)) for row in rows]
    )
    ring.flag(ring.number - 1).fill_(ring.number)
    with pytest.raises(EngineFailure, match=r"came back as .* error 1"):
        launched.collect()


def test_many_pages_at_once_still_reach_the_device(drivers) -> None:
    """More table entries than a round carries travel as whole rows."""
    eager, queued = drivers(max_context=8192, prefill_chunk=1024)
    prompt = [(7 * i) % 300 for i in range(5000)]
    results = []
    for driver in (eager, queued):
        (row,) = start(driver, GREEDY, prompts=[prompt])
        for _ in range(3):
            driver.decode([row])
        results.append(row.tokens)
    assert results[0] == results[1]


@pytest.mark.parametrize("page", [-7, 1 << 20])
def test_a_bad_page_is_refused_before_a_kernel_follows_it(drivers, page) -> None:
    _, queued = drivers()
    rows = start(queued, GREEDY, prompts=[[5] * 63])
    tables = queued.program._stores.tables
    tables.append(0, page)
    with pytest.raises(EngineFailure, match=rf"names page {page}; there are \d+ pages"):
        queued.decode(rows)
