"""Speculative rounds enqueued behind one that is not read: the device alone knows how it went."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.contract.units import DecodeRow, Disposition, RowDecision
from tests.model.checkpoint_driver import checkpoint_driver, prompt
from tests.model.drafters import drafting, followers, random_right, scripted
from tests.model.queued_mixes import Wanted, assert_same, engine_over, random_mix, run_mix
from tests.model.scripted_costs import costs, free
from tests.model.test_parity import prompts
from tests.model.test_speculation_engine import CONTEXT, answers, knowing

GREEDY = SamplingParams(temperature=0.0, seed=0)
DRAWN = SamplingParams(
    temperature=0.9, top_k=40, seed=11, repetition_penalty=1.2, frequency_penalty=0.3
)
LENGTHS = [5, 61, 2, 64]
VOID = RowDecision(disposition=Disposition.VOID)


COUNT = 80


KNOWN: dict = {}


def plain(model, sampling):
    """Tokens and log-probabilities of plain decoding, computed once."""
    if sampling.seed not in KNOWN:
        KNOWN[sampling.seed] = plainly(model, sampling)
    return KNOWN[sampling.seed]


def plainly(model, sampling):
    driver = checkpoint_driver(model, "eager")
    rows = [
        driver.begin(prompt(ids), sampling=sampling, lane=lane, max_new_tokens=COUNT)
        for lane, ids in enumerate(prompts(61, LENGTHS))
    ]
    for row in rows:
        driver.prefill(row)
    for _ in range(COUNT - 1):
        driver.decode(rows)
    return [(row.tokens, row.logprobs) for row in rows]


class Rows:
    """Sequences of a driver whose rounds are launched one ahead of the other."""

    def __init__(self, case, units, sampling, most, right, backend="mtp") -> None:
        asked = prompts(61, LENGTHS)
        self.expected = plain(case.model, sampling)
        known = [[*ids, *tokens] for ids, (tokens, _) in zip(asked, self.expected, strict=True)]
        draft = free(drafting(case, scripted(backend, followers(*known), right), most))
        self.driver = checkpoint_driver(
            case.model, units, draft, max_concurrency=len(asked), max_context=256
        )
        self.program = self.driver.program
        self.rows = [
            self.driver.begin(prompt(ids), sampling=sampling, lane=lane, max_new_tokens=COUNT)
            for lane, ids in enumerate(asked)
        ]
        for row in self.rows:
            self.driver.prefill(row)

    def launch(self, rows, behind=None):
        wanted = [DecodeRow(sequence=r.handle, permit=self.driver.permit(r)) for r in rows]
        launched = self.program.launch_decode(wanted, ahead_of=behind)
        launched.finish()
        return launched

    def settle(self, launched, rows, void=(), kept=None):
        """Take everything, but nothing of ``void`` rows, and of one row ``kept`` tokens at most."""
        pending = launched.collect()
        decisions, taken = [], []
        for row, made in zip(rows, pending.rows, strict=True):
            count = len(made.token_ids)
            if kept is not None and row is rows[0]:
                count = min(count, kept)
            cut = count < len(made.token_ids)
            accept = RowDecision(disposition=Disposition.ACCEPT, accepted=count, terminal=cut)
            decisions.append(VOID if row in void else accept)
            taken.append(0 if row in void else count)
        self.program.commit(pending, decisions)
        self.program.check()
        for row, made, count in zip(rows, pending.rows, taken, strict=True):
            row.tokens += made.token_ids[:count]
            row.logprobs += made.logprobs[:count]
        return taken

    def assert_right(self) -> None:
        for row, (tokens, logprobs) in zip(self.rows, self.expected, strict=True):
            assert row.tokens == tokens[: len(row.tokens)]
            assert row.logprobs == logprobs[: len(row.tokens)]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize(
    ("units", "most", "backend"),
    [("late", 1, "mtp"), ("late", 6, "mtp"), ("late", 4, "dflash2"), ("queued", 3, "mtp")],
)
def test_rounds_ahead_give_the_tokens_of_plain_decoding(
    build_case, units, sampling, most, backend
) -> None:
    """Over page edges; rows leave and join the round ahead, places in it change."""
    group = Rows(build_case("tied"), units, sampling, most, random_right(most, most), backend)
    draw, all_rows = random.Random(most), group.rows
    members = list(all_rows)
    flying = group.launch(members)
    for _ in range(9):
        following = [row for row in members if draw.random() < 0.8] or members[:1]
        following += [row for row in all_rows if row not in members and draw.random() < 0.5]
        draw.shuffle(following)
        behind = group.launch(following, flying)
        group.settle(flying, members)
        flying, members = behind, following
    group.settle(flying, members)
    group.assert_right()
    assert min(len(row.tokens) for row in all_rows) > 4


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_row_that_ends_within_its_span_is_void_ahead_and_leaves_its_state(
    build_case, kept
) -> None:
    """The round behind has folded all of the span; the state is brought back to what is kept."""
    case = build_case("tied")
    group = Rows(case, "late", DRAWN, 3, lambda: 3)
    first = group.launch(group.rows)
    second = group.launch(group.rows, first)
    taken = group.settle(first, group.rows, kept=kept)
    assert taken == [kept, 4, 4, 4]
    ended, others = group.rows[0], group.rows[1:]
    third = group.launch(others, second)
    group.settle(second, group.rows, void=[ended])
    group.settle(third, others)
    group.assert_right()
    steps = checkpoint_driver(case.model, "eager")
    row = steps.begin(prompt(prompts(61, LENGTHS)[0]), sampling=DRAWN)
    steps.generate(row, 1 + kept)
    assert row.tokens == ended.tokens
    ours, theirs = group.driver.state_of(ended), steps.state_of(row)
    for mine, other in zip(ours, theirs, strict=False):
        assert mine.equal(other)
    while len(ended.tokens) < 30:
        group.driver.decode([ended])
    group.assert_right()


def test_two_aborted_rounds_leave_no_trace(build_case) -> None:
    group = Rows(build_case("tied"), "late", DRAWN, 3, random_right(4, 3))
    flying = group.launch(group.rows)
    behind = group.launch(group.rows, flying)
    group.settle(flying, group.rows)
    group.settle(behind, group.rows)
    before = [group.driver.state_of(row) for row in group.rows]
    first = group.launch(group.rows)
    second = group.launch(group.rows, first)
    made, later = first.collect(), second.collect()
    group.program.abort(later)
    group.program.abort(made)
    group.program.check()
    for row, kept in zip(group.rows, before, strict=True):
        for mine, other in zip(group.driver.state_of(row), kept, strict=True):
            assert mine.equal(other)
    while min(len(row.tokens) for row in group.rows) < 40:
        group.driver.decode([row for row in group.rows if len(row.tokens) < 40])
    group.assert_right()


def test_a_round_is_aborted_behind_one_that_was_taken(build_case) -> None:
    group = Rows(build_case("tied"), "late", DRAWN, 3, random_right(5, 3))
    flying = group.launch(group.rows)
    behind = group.launch(group.rows, flying)
    group.settle(flying, group.rows)
    group.program.abort(behind.collect())
    group.program.check()
    while min(len(row.tokens) for row in group.rows) < 40:
        group.driver.decode([row for row in group.rows if len(row.tokens) < 40])
    group.assert_right()


def test_what_may_follow(build_case) -> None:
    """Rounds that draft follow each other and plain ones where draws alone decide; a plain round
    does not follow one that verifies."""
    case = build_case("tied")
    group = Rows(case, "queued", GREEDY, 3, lambda: 0)
    handles = [row.handle for row in group.rows]

    def may(launched, *, decided=True) -> bool:
        return group.program.may_follow(launched, handles, decided=decided)

    flying = group.launch(group.rows)
    assert may(flying)
    assert not may(flying, decided=False)
    while group.driver.record(group.rows[0]).drafts_to_verify:
        group.settle(flying, group.rows)
        flying = group.launch(group.rows)
    assert not may(flying)
    group.settle(flying, group.rows)
    while any(group.driver.record(row).drafts_wanted(4) for row in group.rows):
        group.driver.decode(group.rows)
    plain = group.launch(group.rows)
    assert may(plain, decided=False)
    assert group.program.has_room_again(plain)
    group.settle(plain, group.rows)


TABLES = {
    "free": lambda most: costs(most, verify=0.0, draft=0.0),
    "dear": lambda most: costs(most, verify=0.15, draft=0.25, width=0.1),
}


@pytest.mark.parametrize(
    ("units", "most", "table", "backend"),
    [
        ("late", 3, "free", "mtp"),
        ("late", 3, "dear", "mtp"),
        ("queued", 7, "free", "mtp"),
        ("late", 4, "dear", "dflash"),
    ],
)
def test_random_mixes(build_case, units, most, table, backend) -> None:
    """Stops, budgets, masks, penalties, cancels, and requests that come and go while rounds that
    verify and rounds that do not are enqueued behind each other."""
    case, sizes = build_case("tied"), {"max_context": CONTEXT, "max_concurrency": 4}
    for seed in range(2):
        mix = random_mix(random.Random(1000 * most + seed), CONTEXT, 10)
        calm = [replace(wanted, cancel_after=None) for wanted in mix]
        expected = answers(case, calm)
        draft = knowing(case, calm, expected, most, seed, backend)
        draft = replace(draft, costs=TABLES[table](most))
        with engine_over(case.model, units, drafting=draft, **sizes) as (engine, program):
            assert_same(calm, run_mix(engine, calm, spread=False), expected)
            assert_same(mix, run_mix(engine, mix, spread=True), expected)
            program.check()
        capacity = program.capacity()
        assert (capacity.available, capacity.resident) == (capacity.total, 0)


@pytest.mark.parametrize("units", ["queued", "late"])
def test_an_engine_launches_them_ahead_and_little_room_changes_nothing(
    build_case, units, monkeypatch
) -> None:
    """Pages for less than three answers: rows pause and come back, behind rounds in flight."""
    from ninfer_qwen3_5.program.queued.spec_launch import SpecLauncher

    ahead = []
    fold = SpecLauncher._fold_ahead
    monkeypatch.setattr(
        SpecLauncher, "_fold_ahead", lambda self, rows: (ahead.append(len(rows)), fold(self, rows))
    )
    case = build_case("tied")
    asked = prompts(62, [40, 33, 50])
    options = GenerationOptions(sampling=GREEDY, max_new_tokens=90, ignore_eos=True)
    mix = [Wanted(PromptInput(token_ids=ids), options) for ids in asked]
    expected = answers(case, mix)
    draft = knowing(case, mix, expected, 3, 1)
    sizes = {"max_context": CONTEXT, "max_concurrency": 3, "kv_tokens": 384}
    with engine_over(case.model, units, drafting=draft, **sizes) as (engine, program):
        assert_same(mix, run_mix(engine, mix, spread=False), expected)
        assert engine.stats().pauses > 0
        program.check()
    assert sum(count > 0 for count in ahead) > len(ahead) / 2


def test_answers_up_to_the_end_of_the_context(build_case) -> None:
    """Permits of rounds ahead count the most that both may run, which the context does not hold."""
    case = build_case("tied")
    asked = prompts(63, [40, 64])
    mix = [
        Wanted(
            PromptInput(token_ids=ids),
            GenerationOptions(sampling=GREEDY, max_new_tokens=128 - len(ids), ignore_eos=True),
        )
        for ids in asked
    ]
    sizes = {"max_context": 128, "max_concurrency": 2}
    with engine_over(case.model, "eager", **sizes) as (engine, _):
        expected = run_mix(engine, mix, spread=False)
    draft = knowing(case, mix, expected, 5, 2)
    with engine_over(case.model, "late", drafting=draft, **sizes) as (engine, program):
        assert_same(mix, run_mix(engine, mix, spread=False), expected)
        program.check()
