"""What a GPU does that the CPU does not: it reads late. And control units of any length."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack

import pytest

from ninfer_core.contract.checkpoints import OutputRules, ResumeKind
from ninfer_core.contract.errors import EngineFailure, RequestError
from ninfer_core.contract.events import Delta
from ninfer_core.contract.frontend import ColumnState
from ninfer_core.contract.instance import Budget
from ninfer_core.contract.requests import GenerationOptions, PromptInput, ResponseFormat
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.contract.units import ControlRow, DecodeRow, Disposition, RowDecision
from ninfer_core.testing.fake_frontend import FakeSession
from ninfer_core.testing.program_driver import ProgramDriver
from ninfer_qwen3_5.program.assemble import generation_program
from tests.model.late_device import LateDevice
from tests.model.queued_mixes import MaskedSession, Wanted, assert_same, engine_over, run_mix

DRAWN = SamplingParams(temperature=0.9, top_k=40, seed=11, repetition_penalty=1.2)
PENALISED = SamplingParams(
    temperature=0.0,
    seed=0,
    frequency_penalty=0.5,
    logit_bias=dict.fromkeys(range(40, 52), 30.0),
)
"""Turns round in twelve tokens, so that every count tells."""
PROMPTS = [[3, 1, 4, 1, 5], list(range(7, 90)), [9, 8], list(range(20, 84))]


@pytest.fixture
def late(build_case):
    """A driver over a program on a late device."""
    case, held, device = build_case("untied"), ExitStack(), LateDevice()
    held.enter_context(device.mode)
    budget = Budget(max_context=256, max_concurrency=4, prefill_chunk=32)
    program, _ = generation_program(case.model, budget, device, held=held)
    device.make_late(program)
    yield ProgramDriver(program)
    program.close()


class Every:
    """Allows the token ids that leave ``rest`` when divided by four."""

    def __init__(self, rest: int) -> None:
        self.rest = rest

    def fill(self, drafts, out):
        out[:] = 0x11111111 << self.rest
        return [ColumnState.READY]


def start(driver, prompts=PROMPTS):
    rules = OutputRules(max_new_tokens=64)
    rows = [driver.bind(prompt, DRAWN, rules, lane=i) for i, prompt in enumerate(prompts)]
    for row in rows:
        driver.prefill(row)
    return rows


def launch(driver, rows, masks, behind=None):
    wanted = [
        DecodeRow(sequence=row.handle, permit=driver.permit(row), masks=mask)
        for row, mask in zip(rows, masks, strict=True)
    ]
    launched = driver.program.launch_decode(wanted, ahead_of=behind)
    launched.finish()
    return launched


def settle(driver, launched) -> list[int]:
    pending = launched.collect()
    accept = RowDecision(disposition=Disposition.ACCEPT, accepted=1)
    driver.program.commit(pending, [accept] * len(pending.rows))
    return [row.token_ids[0] for row in pending.rows]


def test_masks_of_a_row_that_joins_ahead_leave_those_of_the_round_before(late) -> None:
    """Two constrained rows take turns behind one that goes on: all rounds have masks."""
    free, first, second, _ = start(late)
    flying = launch(late, [free, first], [None, Every(1)])
    for turn in range(6):
        joins, rest = (second, 2) if turn % 2 == 0 else (first, 1)
        following = launch(late, [free, joins], [None, Every(rest)], flying)
        _, token = settle(late, flying)
        assert token % 4 == 3 - rest
        flying = following
    settle(late, flying)


def force(driver, row, tokens) -> None:
    """Make ``tokens`` part of a sequence, in as many control units as the Program asks for."""
    left = tuple(tokens)
    while left:
        permit = driver.permit(row, len(left))
        part = left[: permit.need.tokens]
        unit = ControlRow(sequence=row.handle, permit=permit, token_ids=part)
        launched = driver.program.launch_control([unit])
        launched.finish()
        accept = RowDecision(disposition=Disposition.ACCEPT, accepted=len(part))
        driver.program.commit(launched.collect(), [accept])
        row.tokens += part
        left = left[len(part) :]


def test_more_tokens_than_a_chunk_are_forced_in_several_units(late, build_case) -> None:
    """A thinking budget's closing is longer than a small prefill chunk."""
    forced = [(5 * i) % 300 for i in range(71)]
    tokens = []
    eager = build_case("untied").driver(max_context=256, max_concurrency=4, prefill_chunk=32)
    for driver in (eager, late):
        row = driver.bind(PROMPTS[1], DRAWN, OutputRules(max_new_tokens=100))
        driver.prefill(row)
        driver.decode([row])
        force(driver, row, forced)
        for _ in range(5):
            driver.decode([row])
        tokens.append(row.tokens)
    assert tokens[0] == tokens[1]
    assert tokens[0][2:73] == forced


def test_aborted_rounds_give_back_the_page_that_only_the_later_one_needed(late) -> None:
    (row,) = start(late, prompts=[list(range(63))])
    before = late.program.capacity().available
    first = launch(late, [row], [None])
    second = launch(late, [row], [None], first)
    assert late.program.capacity().available.pages["main"] == before.pages["main"] - 1
    pending = [first.collect(), second.collect()]
    late.program.abort(pending[1])
    late.program.abort(pending[0])
    assert late.program.capacity().available == before
    late.program.check()


def test_rounds_are_settled_in_order(late) -> None:
    """Commits go forwards and aborts backwards; what comes out of turn is refused."""
    (row,) = start(late, prompts=PROMPTS[:1])
    first = launch(late, [row], [None])
    second = launch(late, [row], [None], first)
    earlier, later = first.collect(), second.collect()
    accept = [RowDecision(disposition=Disposition.ACCEPT, accepted=1)]
    with pytest.raises(EngineFailure, match="launched before it"):
        late.program.commit(later, accept)
    with pytest.raises(EngineFailure, match="launched behind it"):
        late.program.abort(earlier)


@pytest.mark.parametrize("units", ["queued", "late"])
def test_a_grammar_that_raises_ends_the_engine_and_leaves_nothing(build_case, units) -> None:
    """It raises between the two halves of a round, with another one in flight."""
    options = GenerationOptions(max_new_tokens=40, ignore_eos=True)
    grammar = ResponseFormat(kind="grammar", value="1")
    prompts = [PromptInput(token_ids=ids) for ids in PROMPTS]
    prompts[1] = PromptInput(token_ids=PROMPTS[1], response_format=grammar)
    sizes = {"max_context": 256, "max_concurrency": 4}
    with engine_over(build_case("tied").model, units, **sizes) as (engine, program):
        calls = []

        def fill(self, drafts, out):
            calls.append(1)
            if len(calls) == 4:
                raise RuntimeError("the matcher broke")
            out[:] = 0xFFFFFFFF
            return (ColumnState.READY,)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MaskedSession, "fill", fill)
            patch.setattr(MaskedSession, "preview", FakeSession.preview)
            handles = [engine.submit(prompt, options) for prompt in prompts]
            for handle in handles:
                with pytest.raises(EngineFailure, match="the matcher broke"):
                    handle.result(60.0)
    capacity = program.capacity()
    assert (capacity.available, capacity.resident) == (capacity.total, 0)
    program.check()


@pytest.mark.parametrize("units", ["queued", "late"])
def test_an_engine_is_closed_in_the_middle_of_its_rounds(build_case, units) -> None:
    sizes = {"max_context": 2048, "max_concurrency": 4}
    options = GenerationOptions(max_new_tokens=1900, ignore_eos=True)
    with engine_over(build_case("tied").model, units, **sizes) as (engine, program):
        handles = [engine.submit(PromptInput(token_ids=ids), options) for ids in PROMPTS]
        for handle in handles:
            while not isinstance(handle.next_event(60.0), Delta):
                pass
        engine.close()
        for handle in handles:
            with pytest.raises((RequestError, EngineFailure)):
                handle.result(60.0)
    assert program.capacity().available == program.capacity().total
    program.check()


def test_forced_tokens_run_in_a_resume_as_they_ran_before(late, build_case) -> None:
    results = []
    eager = build_case("untied").driver(max_context=256, max_concurrency=4, prefill_chunk=32)
    for driver in (eager, late):
        for pausing in (False, True):
            rules = OutputRules(max_new_tokens=100, logprobs=1)
            row = driver.bind(PROMPTS[1], DRAWN, rules)
            driver.generate(row, 5)
            force(driver, row, [(5 * i) % 300 for i in range(41)])
            driver.decode([row])
            if pausing:
                row = resumed(driver, row)
            for _ in range(8):
                driver.decode([row])
            results.append((row.tokens[-8:], row.logprobs[-8:]))
            driver.finish(row)
    assert results[0] == results[1] == results[2] == results[3]


def resumed(driver, row):
    """The sequence after a pause and a replay of all it had run."""
    plan = driver.program.plan_pause(row.handle, ResumeKind.REPLAY)
    again = dataclasses.replace(row.request, source=driver.pause(row, plan))
    back = driver.adopt(again)
    driver.prefill(back)
    back.tokens, back.logprobs = row.tokens, row.logprobs
    return back


@pytest.mark.parametrize("units", ["queued", "late"])
def test_penalties_count_forced_tokens_and_none_that_were_drawn_in_vain(build_case, units) -> None:
    """A spent thinking budget voids the row of the round ahead, whose token was counted."""
    model, outcomes = build_case("tied").model, []
    mix = [
        Wanted(
            PromptInput(token_ids=PROMPTS[index % 4]),
            GenerationOptions(
                sampling=PENALISED,
                max_new_tokens=40,
                ignore_eos=True,
                thinking_budget=budget,
            ),
        )
        for index, budget in enumerate([3, 7, 12, None, 20, 5])
    ]
    for kind in ("eager", units):
        with engine_over(model, kind, max_context=256, max_concurrency=6) as (engine, _):
            outcomes.append(run_mix(engine, mix, spread=False))
    assert_same(mix, outcomes[1], outcomes[0])
