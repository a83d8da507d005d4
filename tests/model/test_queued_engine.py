"""The engine over units on a queue: warm-up, one request at a time, broken states, device counters.

The CPU replays a captured body by calling it; kernels aside, this is the code that runs on a GPU.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from ninfer_core.contract.engine import AvailabilityState, DeviceUse, EngineOptions, EngineStats
from ninfer_core.contract.errors import EngineFailure, NonFiniteOutput
from ninfer_core.contract.instance import Budget
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.device.cpu import open_device
from ninfer_core.device.errors import DeviceLost
from ninfer_core.engine import Engine
from ninfer_core.engine.opened import OpenedInstance
from ninfer_core.instance import device_use
from ninfer_core.testing.fake_frontend import FakeFrontend
from ninfer_qwen3_5.build import Qwen35Instance
from ninfer_qwen3_5.program.assemble import generation_program

WAIT = 60.0
GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=0.9, top_k=40, seed=11, repetition_penalty=1.2)
PROMPTS = [[3, 1, 4, 1, 5], list(range(7, 90)), [9, 8], list(range(20, 84))]


@pytest.fixture
def opened(build_case):
    """Opens an engine of the "tied" shape on a queued Program; gives it with the Program."""
    case = build_case("tied")
    with ExitStack() as engines:

        def build(**sizes):
            sizes = {"max_context": 256, "max_concurrency": 4, "prefill_chunk": 32} | sizes
            device, programs = open_device(), []

            def factory() -> OpenedInstance:
                budget = Budget(**sizes)
                program, memory = generation_program(case.model, budget, device, held=ExitStack())
                programs.append(program)
                frontend = FakeFrontend(budget.max_context, case.model.config.vocab_size)
                return OpenedInstance(
                    instance=Qwen35Instance("tied", frontend, program, memory),
                    architecture="Qwen3_5ForCausalLM",
                    source=str(case.path),
                    devices=(device.name,),
                    max_context=budget.max_context,
                    warm_up=True,
                    device_use=lambda: (device_use(device),),
                )

            options = EngineOptions(
                max_concurrency=sizes["max_concurrency"], prefill_chunk=sizes["prefill_chunk"]
            )
            return engines.enter_context(Engine(factory, options)), programs[0]

        yield build


def ask(engine, prompt, sampling=GREEDY, tokens=12):
    options = GenerationOptions(sampling=sampling, max_new_tokens=tokens, ignore_eos=True)
    return engine.submit(PromptInput(token_ids=prompt), options)


def tokens_of(handles):
    return [handle.result(WAIT).token_ids for handle in handles]


def assert_nothing_is_held(engine, program) -> None:
    assert engine.drain(WAIT)
    memory = engine.memory_summary()
    assert memory.pages_free == memory.pages_total
    assert memory.state_slots_free == memory.state_slots_total
    program.check()


def test_the_start_report_says_what_was_planned_and_made(opened) -> None:
    engine, _ = opened()
    summary = engine.load_summary()
    memory = summary.memory
    assert 0 < summary.warm_up_seconds < summary.seconds
    assert memory.pages_total == {"main": 4 * 4}
    assert memory.state_slots_total == 4 * 3
    purposes = {"weights", "kv", "state", "workspace", "graphs", "tables", "headroom", "pinned"}
    assert set(memory.bytes) == purposes
    (device,) = memory.devices
    assert isinstance(device, DeviceUse)
    assert (device.name, device.graphs) == ("cpu", 4 * 4)
    assert 0 < device.free < device.total


def test_a_warmed_engine_answers_as_one_that_was_not(opened, build_case) -> None:
    engine, program = opened()
    assert engine.stats() == EngineStats()
    warmed = tokens_of([ask(engine, prompt, DRAWN) for prompt in PROMPTS])
    assert_nothing_is_held(engine, program)
    driver = build_case("tied").driver(max_context=256, max_concurrency=4, prefill_chunk=32)
    cold = []
    for prompt in PROMPTS:
        row = driver.bind(prompt, DRAWN)
        driver.generate(row, 12)
        cold.append(tuple(row.tokens))
        driver.finish(row)
    assert warmed == cold


def test_serving_creates_nothing_on_the_device(opened) -> None:
    engine, program = opened()

    def counts():
        (use,) = engine.memory_summary().devices
        return use.arenas, use.takes, use.graphs, use.allocations

    before = counts()
    handles = [ask(engine, prompt, sampling) for prompt in PROMPTS for sampling in (GREEDY, DRAWN)]
    handles[3].cancel()
    for handle in handles:
        handle.result(WAIT)
    assert counts() == before
    assert_nothing_is_held(engine, program)


@pytest.mark.parametrize("kv_tokens", [None, 128])
def test_two_requests_on_one_place_both_end(opened, kv_tokens) -> None:
    """The least layout: as many pages as one full context, three slots, one row."""
    engine, program = opened(max_concurrency=1, max_context=128, kv_tokens=kv_tokens)
    memory = engine.load_summary().memory
    assert (memory.pages_total, memory.state_slots_total) == ({"main": 2}, 3)
    first = ask(engine, list(range(70)), tokens=58)
    second = ask(engine, [5, 6, 7], tokens=20)
    alone = [len(tokens) for tokens in tokens_of([first, second])]
    assert alone == [58, 20]
    assert engine.stats().finished == {"output_limit": 2}
    assert_nothing_is_held(engine, program)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("poison", ["state", "keys"])
def test_a_broken_request_ends_alone_and_what_it_held_serves_again(
    opened, sampling, poison
) -> None:
    """NaN in what one of four requests keeps: the other three and all later ones are untouched."""
    engine, program = opened()
    expected = tokens_of([ask(engine, prompt, sampling, 20) for prompt in PROMPTS])
    decode, rounds = program._units.decode, []

    def poisoned(rows, *, ahead):
        if len(rows) == len(PROMPTS):
            rounds.append(len(rows))
            if len(rounds) == 3:
                break_sequence(program, rows[1].handle, poison)
        return decode(rows, ahead=ahead)

    program._units.decode = poisoned
    handles = [ask(engine, prompt, sampling, 20) for prompt in PROMPTS]
    with pytest.raises(NonFiniteOutput, match="NaN or infinity"):
        handles[1].result(WAIT)
    others = [0, 2, 3]
    assert tokens_of([handles[i] for i in others]) == [expected[i] for i in others]
    program._units.decode = decode
    again = tokens_of([ask(engine, prompt, sampling, 20) for prompt in PROMPTS])
    assert again == expected
    stats = engine.stats()
    assert stats.failed == {"nonfinite_output": 1}
    assert stats.finished == {"output_limit": 11}
    assert_nothing_is_held(engine, program)


def break_sequence(program, handle, poison) -> None:
    """Put NaN into every state slot, or into the first page of keys and values, of a sequence."""
    contexts = program._contexts
    sequence = contexts.sequences.get(handle)
    if poison == "state":
        for slot in sequence.ring:
            contexts._state.recurrent.recurrent[:, slot.index].fill_(float("nan"))
        return
    page = int(program._units._lanes.host_tables[sequence.row, 0])
    for layer in contexts._state.layers:
        if hasattr(layer, "keys"):
            layer.keys[page].fill_(float("nan"))
            layer.values[page].fill_(float("nan"))


def test_a_failed_engine_on_a_lost_device_closes_without_another_error(opened) -> None:
    engine, program = opened()

    def lost(*_: object, **__: object) -> None:
        raise DeviceLost("cpu was lost while asking compute")

    lane = program._units._lane
    program._units._lane = SimpleNamespace(synchronize=lost, record=lane.record)
    program.launch_decode = lost
    handles = [ask(engine, prompt) for prompt in PROMPTS]
    for handle in handles:
        with pytest.raises(EngineFailure, match="DeviceLost: cpu was lost"):
            handle.result(WAIT)
    assert engine.availability().state is AvailabilityState.FAILED
    engine.close()
