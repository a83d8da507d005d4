"""The costs of drafts are those of the graphs that rounds replay."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from ninfer_core.contract.draft_costs import DraftCosts
from ninfer_core.contract.instance import Budget
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.device.cpu import open_device
from ninfer_core.draft_report import draft_details
from ninfer_core.testing.program_driver import ProgramDriver
from ninfer_qwen3_5.program.assemble import generation_program
from ninfer_qwen3_5.program.queued.draft_measure import DraftMeasure, drawing, measured
from ninfer_qwen3_5.program.queued.rounds import Part
from tests.model.drafters import drafting, unscripted

PLAIN, FOLD = 1000.0, 7.0
DRAWN, TRIED = 20.0, 5.0
"""What a drawn row adds, and what trying drafts adds to a round."""


class Ticking:
    """A clock that graphs move on: ``count`` rows take so much more."""

    def __init__(self, program) -> None:
        self.now = 0.0
        rounds, spec = program._units._rounds._rounds, program._units._speculation._rounds
        for (count, part), captured in rounds._captured.items():
            seconds = {Part.GREEDY: PLAIN + count, Part.DRAWN: PLAIN + DRAWN * count}
            captured.graph = Timed(self, captured.graph, seconds.get(part, 0))
        for (count, part, width), (graph, held) in spec._graphs.items():
            seconds = PLAIN + 10 * count * width
            if part is Part.DRAWN:
                seconds += TRIED + DRAWN * count * width
            spec._graphs[count, part, width] = Timed(self, graph, seconds), held
        for (count, most), graph in spec._makes.items():
            spec._makes[count, most] = Timed(self, graph, 100.0 * most + count)
        for count, graph in spec._folds.items():
            spec._folds[count] = Timed(self, graph, FOLD)

    def __call__(self) -> float:
        return self.now


class Timed:
    def __init__(self, clock, graph, seconds) -> None:
        self.clock, self.graph, self.seconds = clock, graph, seconds

    def replay(self) -> None:
        self.graph.replay()
        self.clock.now += self.seconds


@pytest.fixture
def program(build_case):
    case = build_case("tied")
    budget = Budget(max_context=128, max_concurrency=5, prefill_chunk=32)
    made, _ = generation_program(
        case.model,
        budget,
        open_device(),
        held=ExitStack(),
        drafting=drafting(case, unscripted("mtp"), 6),
    )
    yield made
    made.close()


def test_each_number_has_the_time_of_its_graph(program) -> None:
    """Verified drafts take the least width that holds them, made ones the least graph."""
    units, clock = program._units, Ticking(program)
    speculation, scratch = units._speculation, program._stores.slots.scratch
    measure = DraftMeasure(
        units._rounds._rounds,
        units._rounds._ring,
        speculation._rounds,
        speculation.inputs,
        units._lane,
        scratch,
        clock,
    )
    assert speculation._rounds.widths == (1, 2, 4, 7)
    state = program._contexts._state
    costs = measured(measure, units._lanes, state)
    assert costs.rows == (1, 4, 5)
    assert costs.plain == (1001.0, 1004.0, 1005.0)
    widths = [1, 2, 4, 4, 7, 7, 7]
    for drafts, width in enumerate(widths):
        expected = tuple(PLAIN + FOLD + 10 * count * width for count in costs.rows)
        assert costs.verify[drafts] == expected
    makes = [0, 1, 3, 3, 6, 6, 6]
    for drafts, most in enumerate(makes):
        expected = tuple(100.0 * most + count if most else 0.0 for count in costs.rows)
        assert costs.draft[drafts] == expected
    drawn = costs.drawn
    assert drawn is not None
    assert (drawn.rows, drawn.draft) == (costs.rows, costs.draft)
    assert drawn.plain == (1020.0, 1080.0, 1100.0)
    for place, count in enumerate(costs.rows):
        # Without a draft it is what draws add to a plain round.
        added = [drawn.plain[place] - costs.plain[place]]
        added += [TRIED + DRAWN * count * width for width in widths[1:]]
        for drafts, more in enumerate(added):
            expected = costs.verify[drafts][place] + more
            assert drawn.verify[drafts][place] == pytest.approx(expected)
    settings = units._lanes.settings
    assert not settings.temperature.any()
    assert not settings.top_k.any()
    assert (units._lanes.tables.block_tables == -1).all()
    assert not units._lanes.counts.generated.any()
    for slot in (0, scratch):
        assert not state.recurrent.recurrent[:, slot].any()
        assert not torch.any(state.hidden[slot])


def test_rounds_that_draw_are_measured_as_they_draw(program, monkeypatch) -> None:
    """The lanes' settings are those of a request at temperature 1 while its graphs run."""
    units, seen = program._units, []
    speculation = units._speculation
    measure = DraftMeasure(
        units._rounds._rounds, units._rounds._ring, speculation._rounds, speculation.inputs,
        units._lane, program._stores.slots.scratch,
    )  # fmt: skip
    replay = type(speculation._rounds).replay

    def noted(rounds, count, part, width):
        seen.append((part, units._lanes.settings.temperature.unique().tolist()))
        return replay(rounds, count, part, width)

    greedy = DraftCosts(
        rows=(1, 4), plain=(1.0,) * 2, verify=((1.0,) * 2,) * 7, draft=((0.0,) * 2,) * 7
    )
    monkeypatch.setattr(measure, "costs", lambda: greedy)
    monkeypatch.setattr(type(speculation._rounds), "replay", noted)
    measured(measure, units._lanes, program._contexts._state)
    # Two widths of two numbers of rows, one sample ahead of three, two replays each.
    assert seen == [(Part.DRAWN, [1.0])] * (2 * 2 * 4 * 2)
    assert not units._lanes.settings.temperature.any()


def test_lanes_that_draw_are_those_of_a_request_without_penalties(program) -> None:
    lanes = program._units._lanes
    plain = SamplingParams()
    with drawing(lanes.settings):
        for name, value in (
            *(("temperature", 1.0), ("top_k", 20), ("top_p", 0.95), ("min_p", plain.min_p)),
            ("presence", plain.presence_penalty),
            ("frequency", plain.frequency_penalty),
            ("repetition", plain.repetition_penalty),
        ):
            assert getattr(lanes.settings, name).unique().tolist() == [pytest.approx(value)], name


def test_each_request_goes_by_the_prices_of_its_own_rounds(build_case) -> None:
    from ninfer_qwen3_5.program.draft_prices import presumed, prices_of

    case = build_case("tied")
    budget = Budget(max_context=128, max_concurrency=2, prefill_chunk=32)
    greedy = presumed(3)
    dear = replace(greedy, verify=((1.0,), (5.0,), (6.0,), (7.0,)))
    draft = replace(drafting(case, unscripted("mtp"), 3), costs=replace(greedy, drawn=dear))
    program, _ = generation_program(case.model, budget, open_device(), drafting=draft)
    prices = prices_of(program.limits)
    assert prices is not None
    assert prices.of(plain=True).by_drafts(1) == pytest.approx((1.0, 1.1, 1.2, 1.3))
    assert prices.of(plain=False).by_drafts(1) == pytest.approx((1.0, 5.1, 6.2, 7.3))
    driver = ProgramDriver(program)
    for lane, (temperature, expected) in enumerate(((0.0, greedy), (0.8, dear))):
        sampling = SamplingParams(temperature=temperature, seed=0)
        bound = driver.bind([5, 6, 7], sampling, lane=lane)
        record = program._contexts.sequences.get(bound.handle)
        assert record.steering.prices.costs.verify == expected.verify
    program.close()


def test_costs_are_among_what_was_fixed_at_start(build_case) -> None:
    """On the CPU, where nothing is measured, none are told."""
    from ninfer_qwen3_5.program.draft_prices import presumed, prices_of

    case = build_case("tied")
    budget = Budget(max_context=128, max_concurrency=2, prefill_chunk=32)

    for costs in (None, presumed(3)):
        draft = replace(drafting(case, unscripted("mtp"), 3), costs=costs)
        program, _ = generation_program(case.model, budget, open_device(), drafting=draft)
        assert program.limits.draft_costs == costs
        prices = prices_of(program.limits)
        assert prices is not None
        assert prices.greedy is prices.drawn
        assert prices.greedy.by_drafts(2) == pytest.approx((1.0, 1.1, 1.2, 1.3))
        program.close()


def test_the_report_tells_both_tables() -> None:
    greedy = DraftCosts(
        rows=(2,), plain=(0.004,), verify=((0.004,), (0.005,)), draft=((0.0,), (0.001,))
    )
    drawn = replace(greedy, plain=(0.006,), verify=((0.006,), (0.0075,)))
    told = []
    for costs in (greedy, replace(greedy, drawn=drawn)):
        program = SimpleNamespace(limits=SimpleNamespace(draft_tokens=1, draft_costs=costs))
        told.append(draft_details("mtp", program)["draft"]["costs_ms"]["2"])
    assert told[0] == {"plain": 4.0, "verify": [4.0, 5.0], "draft": [0.0, 1.0]}
    assert told[1] == told[0] | {"drawn": {"plain": 6.0, "verify": [6.0, 7.5]}}
