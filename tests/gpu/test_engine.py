"""The demo model behind the engine on a GPU: what start makes, and what traffic leaves behind."""

from __future__ import annotations

import contextlib

import pytest
import torch

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions, EngineStats
from ninfer_core.contract.errors import NonFiniteOutput
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.errors import UsageError

DEVICE = "cuda:0"
WAIT = 120.0
GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=0.9, top_k=40, seed=11, repetition_penalty=1.2)
PROMPTS = [[3, 1, 4, 1, 5], list(range(7, 90)), [9, 8], list(range(20, 84))]
GIB = 1 << 30


@contextlib.contextmanager
def opened(**options):
    settings = {"max_concurrency": 4, "max_context": 1024, "prefill_chunk": 64, **options}
    settings.setdefault("cache_policy", "off")
    settings = EngineOptions(devices=(DEVICE,), queue_timeout=None, **settings)
    with Engine.open("demo", settings) as engine:
        yield engine


def ask(engine, prompt, sampling=GREEDY, tokens=20, **options):
    return engine.submit(
        PromptInput(token_ids=prompt),
        GenerationOptions(sampling=sampling, max_new_tokens=tokens, ignore_eos=True, **options),
    )


def tokens_of(handles):
    return [handle.result(WAIT).token_ids for handle in handles]


def counts(engine):
    [use] = engine.memory_summary().devices
    return use.arenas, use.takes, use.graphs, use.allocations


def assert_nothing_is_held(engine) -> None:
    assert engine.drain(WAIT)
    memory = engine.memory_summary()
    assert memory.pages_free == memory.pages_total
    assert memory.state_slots_free == memory.state_slots_total


def test_start_warms_up_and_reports() -> None:
    with opened() as engine:
        summary = engine.load_summary()
        assert 0 < summary.warm_up_seconds < summary.seconds
        assert engine.stats() == EngineStats()
        memory = summary.memory
        purposes = {"weights", "kv", "state", "workspace", "graphs", "headroom", "tables", "pinned"}
        assert purposes <= set(memory.bytes)
        [use] = memory.devices
        assert (use.name, use.graphs) == ("cuda:0", 4 * 4)
        assert 0 < use.free < use.total
        assert_nothing_is_held(engine)


@pytest.mark.parametrize("kv", ["bf16", "int8", "fp8"])
def test_traffic_creates_nothing_on_the_device(kv) -> None:
    with opened(kv_format=kv) as engine:
        before = counts(engine)
        for _ in range(3):
            handles = [
                ask(engine, prompt, sampling, logprobs=top, prompt_logprobs=top)
                for prompt in [*PROMPTS, list(range(300, 900))]
                for sampling, top in ((GREEDY, None), (DRAWN, 5))
            ]
            handles[2].cancel()
            for handle in handles:
                handle.result(WAIT)
        assert counts(engine) == before
        assert_nothing_is_held(engine)


def test_two_requests_on_one_place_both_end() -> None:
    with opened(max_concurrency=1, max_context=128, kv_tokens=128) as engine:
        first, second = ask(engine, list(range(70)), tokens=58), ask(engine, [5, 6, 7])
        assert [len(tokens) for tokens in tokens_of([first, second])] == [58, 20]
        assert_nothing_is_held(engine)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("poison", ["state", "keys"])
def test_a_broken_request_ends_alone_and_what_it_held_serves_again(sampling, poison) -> None:
    with opened() as engine:
        expected = tokens_of([ask(engine, prompt, sampling, 40) for prompt in PROMPTS])
        program, rounds = engine._core.program, []
        decode = program._units.decode

        def poisoned(rows, *, ahead):
            if len(rows) == len(PROMPTS):
                rounds.append(len(rows))
                if len(rounds) == 3:
                    break_sequence(program, rows[1].handle, poison)
            return decode(rows, ahead=ahead)

        program._units.decode = poisoned
        handles = [ask(engine, prompt, sampling, 40) for prompt in PROMPTS]
        with pytest.raises(NonFiniteOutput, match="NaN or infinity"):
            handles[1].result(WAIT)
        assert tokens_of([handles[i] for i in (0, 2, 3)]) == [expected[i] for i in (0, 2, 3)]
        program._units.decode = decode
        again = tokens_of([ask(engine, prompt, sampling, 40) for prompt in PROMPTS])
        assert again == expected
        assert engine.stats().failed == {"nonfinite_output": 1}
        assert_nothing_is_held(engine)


def break_sequence(program, handle, poison) -> None:
    """Put NaN into every state slot, or into the first page of keys and values, of a sequence."""
    contexts = program._contexts
    sequence = contexts.sequences.get(handle)
    if poison == "state":
        for slot in sequence.ring:
            contexts._state.recurrent.recurrent[:, slot.index].fill_(float("nan"))
        return
    page = memoryview(program._stores.tables._cells)[sequence.row, 0]
    for layer in contexts._state.layers:
        if hasattr(layer, "keys"):
            layer.keys[page].fill_(float("nan"))
            layer.values[page].fill_(float("nan"))


def test_an_engine_that_does_not_fit_says_what_would() -> None:
    """With all but half a GiB of the memory taken there is no room for a single page."""
    free, _ = torch.cuda.mem_get_info(0)
    taken = torch.empty(free - GIB // 2, dtype=torch.uint8, device=DEVICE)
    try:
        with pytest.raises(UsageError, match=r"gives 0 pages.*headroom 1,073,741,824"), opened():
            pass
    finally:
        del taken
        torch.cuda.empty_cache()
