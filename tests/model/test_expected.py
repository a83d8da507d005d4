"""How long a round should take: a running estimate, and what the wait makes of it."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from ninfer_core.contract.instance import Budget
from ninfer_core.contract.units import DecodeRow
from ninfer_core.device.cpu import open_device
from ninfer_core.testing.program_driver import ProgramDriver
from ninfer_qwen3_5.program.assemble import generation_program
from ninfer_qwen3_5.program.queued.expected import Expected


def test_the_first_round_is_taken_as_it_is_and_each_count_has_its_own() -> None:
    expected = Expected()
    assert expected.seconds(2) == 0.0
    expected.learn(2, 0.004, overslept=False)
    assert expected.seconds(2) == 0.004
    assert expected.seconds(1) == 0.0


def test_later_ones_weigh_a_quarter() -> None:
    expected = Expected()
    expected.learn(1, 0.004, overslept=False)
    expected.learn(1, 0.003, overslept=False)
    assert expected.seconds(1) == pytest.approx(0.00375)


def test_a_round_behind_a_long_chunk_counts_for_a_quarter_more_at_most() -> None:
    expected = Expected()
    expected.learn(1, 0.004, overslept=False)
    expected.learn(1, 1.0, overslept=False)
    assert expected.seconds(1) == pytest.approx(0.004 * (1 + 0.25 * 0.25))


def test_an_estimate_that_is_too_long_gives_way_although_no_end_is_seen() -> None:
    """A host that sleeps for nine tenths of its estimate sees no end of shorter rounds."""
    expected, rounds = Expected(), 0
    expected.learn(8, 0.040, overslept=False)
    while (sleep := 0.9 * expected.seconds(8)) > 0.015:
        expected.learn(8, sleep, overslept=True)
        rounds += 1
    assert rounds <= 8


def test_a_round_is_waited_for_with_the_rehearsal(build_case) -> None:
    """Its flag stays down until the rehearsal comes, which is only after a long sleep."""
    budget = Budget(max_context=256, max_concurrency=2, prefill_chunk=32)
    model = build_case("tied").model
    program, _ = generation_program(model, budget, open_device(), held=ExitStack())
    driver = ProgramDriver(program)
    row = driver.bind([3, 1, 4, 1, 5])
    driver.prefill(row)
    launcher, calls = program._units._rounds, []
    launcher._expected.learn(1, 0.005, overslept=False)
    flag = launcher._flags[launcher._ring.number % len(launcher._flags)]
    word, flag._word = flag._word, SimpleNamespace(value=0)

    def rehearse() -> None:
        calls.append(flag.read())
        flag._word.value = word.value

    program.before_results(rehearse)
    launched = program.launch_decode([DecodeRow(sequence=row.handle, permit=driver.permit(row))])
    pending = launched.collect()
    assert calls == [0]
    assert pending.waited_seconds > 0.003
    program.abort(pending)
    program.close()
