"""What a round's rehearsal goes through stays as it is, whatever is in flight."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ninfer_core.contract.instance import Budget
from ninfer_core.contract.resources import PAGE_TOKENS
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.contract.units import DecodeRow, Disposition, RowDecision
from ninfer_core.device.cpu import open_device
from ninfer_core.testing.program_driver import ProgramDriver
from ninfer_qwen3_5.program.assemble import generation_program
from ninfer_qwen3_5.program.stores import MAIN

PENALISED = SamplingParams(temperature=0.9, seed=3, repetition_penalty=1.3)
LENGTHS = [5, PAGE_TOKENS - 1, PAGE_TOKENS - 3]


def open_program(case, held):
    budget = Budget(max_context=512, max_concurrency=4, prefill_chunk=64)
    return generation_program(case.model, budget, open_device(), held=held)[0]


def start(program, sampling):
    driver = ProgramDriver(program)
    rows = [
        driver.bind([3 + at % 50 for at in range(length)], sampling, lane=lane)
        for lane, length in enumerate(LENGTHS)
    ]
    for row in rows:
        driver.prefill(row)
    return driver, rows


def everything(program, rows):
    """All that a unit of these rows could change, spelt out."""
    sequences = [program._contexts.sequences.get(row.handle) for row in rows]
    stores, ring = program._stores, program._units._rounds._ring
    spaces = [stores.context.spaces[MAIN].view(s.history.spaces[MAIN]) for s in sequences]
    flying = [(ring.number - behind) % len(ring.ring.ingress) for behind in (1, 2)]
    words = [ring.ring.ingress[place].tolist() for place in flying]
    counts = program._units._lanes.counts.generated.sum(dim=1).tolist()
    return repr((sequences, spaces, program.capacity(), ring.number, words, counts))


@pytest.mark.parametrize("sampling", [None, PENALISED], ids=["greedy", "penalised"])
def test_nothing_changes_and_tokens_are_those_of_units_that_run_when_asked(
    build_case, sampling
) -> None:
    case, rounds = build_case("tied"), 6
    with ExitStack() as held:
        eager, queued = open_program(case, None), open_program(case, held)
        driver, rows = start(eager, sampling)
        for _ in range(rounds):
            driver.decode(rows)
        expected = [row.tokens for row in rows]
        driver, rows = start(queued, sampling)
        heard: list[object] = []
        queued.before_results(lambda: heard.append(None))
        behind = None
        for _ in range(rounds):
            asked = [DecodeRow(sequence=r.handle, permit=driver.permit(r)) for r in rows]
            launched = queued.launch_decode(asked, ahead_of=behind)
            launched.finish()
            if behind is not None:
                rehearse_and_take(queued, behind, rows, heard)
            behind = launched
        rehearse_and_take(queued, behind, rows, heard)
        assert [row.tokens for row in rows] == expected
        eager.close()
        queued.close()


def rehearse_and_take(program, launched, rows, heard):
    before, calls = everything(program, rows), len(heard)
    launched._rehearse()
    assert everything(program, rows) == before
    assert len(heard) == calls + 1, "the engine's part is missing"
    pending = launched.collect()
    program.commit(
        pending, [RowDecision(disposition=Disposition.ACCEPT, accepted=1)] * len(pending.rows)
    )
    assert everything(program, rows) != before
    for row, made in zip(rows, pending.rows, strict=True):
        row.tokens += made.token_ids
