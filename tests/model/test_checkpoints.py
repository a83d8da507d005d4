"""A prompt that begins with a checkpoint gives what the cold one gives, to the bit."""

from __future__ import annotations

import random

import pytest
import torch

from ninfer_core.contract.checkpoints import CheckpointAction
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.contract.spans import ExecutedSpan
from tests.model.checkpoint_driver import GREEDY, CheckpointDriver, checkpoint_driver, prompt

DRAWN = SamplingParams(
    temperature=0.9, top_k=40, top_p=0.95, seed=11, repetition_penalty=1.2, frequency_penalty=0.1
)
UNITS = ("eager", "queued", "late")
DELETE = CheckpointAction.DELETE


def tokens(seed: int, count: int) -> list[int]:
    r = random.Random(seed)
    return [r.randrange(300) for _ in range(count)]


@pytest.fixture
def drivers(build_case):
    made: list[CheckpointDriver] = []

    def build(units: str, case: str = "untied", **sizes: int) -> CheckpointDriver:
        made.append(checkpoint_driver(build_case(case).model, units, **sizes))
        return made[-1]

    yield build
    for driver in made:
        driver.program.close()


def assert_empty(driver: CheckpointDriver) -> None:
    capacity = driver.program.capacity()
    assert (capacity.available, capacity.resident) == (capacity.total, 0)
    driver.program.check()


@pytest.mark.parametrize(
    ("units", "sampling"), [("eager", GREEDY), ("queued", DRAWN), ("late", DRAWN)]
)
def test_an_adopted_prompt_equals_the_cold_one_in_the_same_chunks(drivers, units, sampling) -> None:
    """Frontiers around edges of pages and chunks, and the last one that a prompt can have."""
    frontiers = (1, 63, 64, 65, 127, 128, 129, 149)
    driver = drivers(units, extra_state_slots=len(frontiers))
    ids = tokens(1, 150)
    cold = driver.begin(prompt(ids, frontiers), sampling=sampling)
    kept = driver.prefill_capturing(cold, frontiers)
    assert tuple(kept) == frontiers
    driver.generate(cold, 6)
    for frontier, captured in kept.items():
        for suffix in (ids[frontier:], tokens(2, 150 - frontier)):
            later = [point for point in frontiers if point >= frontier]
            prepared = prompt(ids[:frontier] + suffix, later)
            work = driver.program.restore_work(captured.checkpoint, prepared)
            assert work is not None
            assert work.tokens == 150 - frontier
            row = driver.begin(prepared, captured.checkpoint, sampling=sampling, lane=1)
            driver.generate(row, 6)
            driver.release(row)
            if suffix == ids[frontier:]:
                expected = cold
            else:
                expected = driver.begin(
                    prompt(ids[:frontier] + suffix, frontiers), sampling=sampling, lane=2
                )
                driver.generate(expected, 6)
                driver.release(expected)
            assert (row.tokens, row.logprobs) == (expected.tokens[:6], expected.logprobs[:6])
    driver.release(cold)
    for captured in kept.values():
        driver.drop(captured.checkpoint, DELETE)
    assert_empty(driver)


@pytest.mark.parametrize("produced", [1, 2, 40])
@pytest.mark.parametrize("units", UNITS)
def test_a_turn_on_a_kept_end_equals_going_on_with_the_sequence(drivers, units, produced) -> None:
    """The answer ran by decode rounds: another prompt that has it goes on from their state, as
    the sequence itself does when the next turn is forced upon it."""
    driver, straight = drivers(units), drivers("eager")
    asked, following = tokens(3, 90), tokens(4, 75)
    rows = [d.begin(prompt(asked)) for d in (driver, straight)]
    for d, row in zip((driver, straight), rows, strict=True):
        d.generate(row, produced)
    assert rows[0].tokens == rows[1].tokens
    captured = driver.keep(rows[0])
    frontier = 90 + produced - 1
    assert captured.facts.frontier == frontier
    whole = [*asked, *rows[0].tokens, *following]
    row = driver.begin(prompt(whole), captured.checkpoint)
    driver.generate(row, 8)
    edges = [edge for edge in range(64, len(whole), 64) if edge > frontier] + [len(whole)]
    expected, at = rows[1], frontier
    forced = [*whole, row.tokens[0]]
    for edge in edges:
        straight.force(expected, forced[at + 1 : edge + 1])
        at = edge
    straight.generate(expected, len(expected.tokens) + 7)
    assert expected.tokens[-8:] == row.tokens
    assert expected.logprobs[-7:] == row.logprobs[-7:]
    for mine, theirs in zip(driver.state_of(row), straight.state_of(expected), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("units", ["eager", "queued"])
def test_a_checkpoint_says_how_its_tokens_ran(drivers, units) -> None:
    driver = drivers(units)
    row = driver.begin(prompt(tokens(5, 90), [30]))
    driver.generate(row, 3)
    driver.force(row, [1, 2, 3, 4])
    driver.generate(row, 9)
    facts = driver.keep(row).facts
    assert facts.spans == (
        ExecutedSpan(30, False),
        ExecutedSpan(64, False),
        ExecutedSpan(90, False),
        ExecutedSpan(92, True),
        ExecutedSpan(96, False),
        ExecutedSpan(98, True),
    )
    assert (facts.frontier, facts.coverage) == (98, {"main": 98})
    assert (facts.footprint.state_slots, facts.footprint.pages) == (1, {"main": 2})


@pytest.mark.parametrize("units", UNITS)
def test_a_sequence_goes_on_behind_its_own_checkpoints(drivers, units) -> None:
    """Captures in the prompt and between rounds, at every column of a page that it still fills."""
    driver, plain = drivers(units, extra_state_slots=40), drivers("eager")
    ids = tokens(6, 100)
    expected = plain.begin(prompt(ids))
    plain.generate(expected, 40)
    row = driver.begin(prompt(ids))
    driver.prefill(row)
    kept = []
    while len(row.tokens) < 40:
        kept.append((driver.capture(row), len(row.tokens)))
        driver.decode([row])
    assert (row.tokens, row.logprobs) == (expected.tokens, expected.logprobs)
    driver.release(row)
    for captured, produced in kept[::6]:
        whole = [*ids, *row.tokens[:produced]]
        again = driver.begin(prompt(whole), captured.checkpoint)
        driver.generate(again, 3)
        assert again.tokens == expected.tokens[produced : produced + 3]
        driver.release(again)
    for captured, _ in kept:
        driver.drop(captured.checkpoint, DELETE)
    assert_empty(driver)


@pytest.mark.parametrize("units", UNITS)
def test_two_forks_live_on_when_their_source_is_deleted(drivers, units) -> None:
    """While a third sequence, which the source was made of, still decodes over the same pages."""
    driver, plain = drivers(units), drivers("eager", extra_state_slots=0)
    stem, ends = tokens(7, 100), [tokens(8, 30), tokens(9, 70), tokens(10, 41)]
    prompts = [prompt(stem + end, [100]) for end in ends]
    expected = [plain.begin(p, lane=i) for i, p in enumerate(prompts)]
    for row in expected:
        plain.generate(row, 20)
    first = driver.begin(prompts[0])
    captured = driver.prefill_capturing(first, [100])[100]
    rows = [first]
    for lane, prepared in enumerate(prompts[1:], start=1):
        driver.decode([first])
        rows.append(driver.begin(prepared, captured.checkpoint, lane=lane))
    driver.decode([first])
    driver.prefill(rows[1])
    freed = driver.drop(captured.checkpoint, DELETE)
    assert (freed.state_slots, freed.pages) == (1, {"main": 0})
    driver.prefill(rows[2])
    while any(len(row.tokens) < 20 for row in rows):
        driver.decode([row for row in rows if len(row.tokens) < 20])
    for row, want in zip(rows, expected, strict=True):
        assert (row.tokens, row.logprobs) == (want.tokens, want.logprobs)
        driver.release(row)
    assert_empty(driver)


@pytest.mark.parametrize("units", UNITS)
def test_an_adopted_sequence_is_replayed_the_way_that_it_came(drivers, units) -> None:
    """Its prompt holds an answer that ran token by token and forced tokens that ran as a chunk."""
    driver = drivers(units)
    first = driver.begin(prompt(tokens(11, 70), [33]))
    driver.generate(first, 9)
    driver.force(first, tokens(12, 20))
    driver.generate(first, 35)
    whole = [*tokens(11, 70), *first.tokens, *tokens(13, 60)]
    captured = driver.keep(first)
    results = []
    for pauses in (False, True):
        row = driver.begin(prompt(whole, [120]), captured.checkpoint)
        driver.chunk(row)
        row = driver.resumed(row) if pauses else row
        driver.generate(row, 6)
        row = driver.resumed(row) if pauses else row
        driver.generate(row, 12)
        results.append((row.tokens, row.logprobs, driver.state_of(row)))
        facts = driver.keep(row).facts
        results[-1] += (facts.spans,)
    for mine, theirs in zip(results[0][2], results[1][2], strict=True):
        assert torch.equal(mine, theirs)
    assert results[0][:2] + results[0][3:] == results[1][:2] + results[1][3:]
