"""The costs of drafts are those of the graphs that rounds replay."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

from ninfer_core.contract.instance import Budget
from ninfer_core.device.cpu import open_device
from ninfer_qwen3_5.program.assemble import generation_program
from ninfer_qwen3_5.program.queued.draft_measure import DraftMeasure, measured
from ninfer_qwen3_5.program.queued.rounds import Part
from tests.model.drafters import drafting, unscripted

PLAIN, FOLD = 1000.0, 7.0


class Ticking:
    """A clock that graphs move on: ``count`` rows take so much more."""

    def __init__(self, program) -> None:
        self.now = 0.0
        rounds, spec = program._units._rounds._rounds, program._units._speculation._rounds
        for (count, part), captured in rounds._captured.items():
            captured.graph = Timed(
                self, captured.graph, PLAIN + count if part is Part.GREEDY else 0
            )
        for (count, part, width), (graph, held) in spec._graphs.items():
            seconds = PLAIN + 10 * count * width if part is Part.GREEDY else 0
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
    assert (units._lanes.tables.block_tables == -1).all()
    assert not units._lanes.counts.generated.any()
    for slot in (0, scratch):
        assert not state.recurrent.recurrent[:, slot].any()
        assert not torch.any(state.hidden[slot])


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
        assert prices.by_drafts(2) == pytest.approx((1.0, 1.1, 1.2, 1.3))
        program.close()
