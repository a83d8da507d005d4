"""A longest gap on queued units: a warmed-up engine measures rounds and chunks of its own."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.errors import EngineFailure
from ninfer_core.contract.instance import Budget
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.device.errors import DeviceLost
from ninfer_core.engine import Engine
from ninfer_core.engine.opened import OpenedInstance
from ninfer_core.testing.fake_frontend import FakeFrontend
from ninfer_qwen3_5.build import Qwen35Instance
from ninfer_qwen3_5.program.assemble import generation_program
from tests.model.late_device import LateDevice

WAIT = 60.0
BUDGET = Budget(max_context=200, max_concurrency=3, prefill_chunk=32)
OPTIONS = EngineOptions(max_concurrency=3, prefill_chunk=32, max_gap_ms=60_000.0)


@pytest.fixture
def factory(build_case):
    """Builds an instance on a late device; ``programs`` are those made, and ``prepare`` is called
    with each before it serves."""
    model = build_case("tied").model

    def build() -> OpenedInstance:
        device, held = LateDevice(), ExitStack()
        held.enter_context(device.mode)
        program, memory = generation_program(model, BUDGET, device, held=held)
        device.make_late(program)
        build.prepare(program)
        frontend = FakeFrontend(BUDGET.max_context, model.config.vocab_size)
        return OpenedInstance(
            instance=Qwen35Instance("tied", frontend, program, memory),
            architecture="Qwen3_5ForCausalLM",
            source="tied",
            devices=(device.name,),
            max_context=BUDGET.max_context,
            warm_up=True,
        )

    build.prepare = lambda program: None
    return build


def test_rounds_that_no_request_waits_for_are_not_rehearsed(factory) -> None:
    with Engine(factory, OPTIONS) as engine:
        assert engine.load_summary().details["max_gap"]["chunk"] == 32
        options = GenerationOptions(max_new_tokens=9, ignore_eos=True)
        asked = [engine.submit(PromptInput(token_ids=[5, n]), options) for n in range(3)]
        assert [len(handle.result(WAIT).token_ids) for handle in asked] == [9, 9, 9]
        assert engine.drain(WAIT)
        memory = engine.memory_summary()
        assert memory.pages_free == memory.pages_total
        assert memory.state_slots_free == memory.state_slots_total


def test_the_failure_of_a_round_is_what_the_start_reports(factory) -> None:
    """Not that the sequences which the round holds could not be ended."""

    def lose(program) -> None:
        limit = program.limit_chunk

        def limited(chunk: int) -> None:
            program._units._rounds.wait = lost
            limit(chunk)

        program.limit_chunk = limited

    def lost(*_: object) -> None:
        raise DeviceLost("cpu was lost while asking compute")

    factory.prepare = lose
    with pytest.raises((DeviceLost, EngineFailure), match="cpu was lost"):
        Engine(factory, OPTIONS)
