"""Records of checkpoints that are wrong: all of them go, and nothing that runs notices.

sgl-project/sglang#12007, #28312: a check of the prefix tree failed after hours, and the server with
it.
"""

from __future__ import annotations

import pytest

from ninfer_core.contract.engine import AvailabilityState
from ninfer_core.contract.errors import CacheFault, EngineFailure
from ninfer_core.contract.frontend import RestoreKind
from ninfer_core.contract.requests import ChatOptions, GenerationOptions, PromptInput
from ninfer_core.contract.resources import CheckpointRef
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.engine.policies_reuse import ReusePolicy
from tests.model.queued_mixes import engine_over

WAIT = 120.0
SIZES = {
    "max_context": 320,
    "max_concurrency": 3,
    "keep_checkpoints": True,
    "extra_state_slots": 6,
    "host_bytes": 4 << 20,
}
POINTS = [(at, RestoreKind.EXPLICIT.value) for at in (70, 130)]
TALK = [(11 * place) % 290 + 3 for place in range(150)]
LONG = [(7 * place) % 290 + 5 for place in range(80)]


def prompt(ids, points=POINTS):
    return PromptInput(token_ids=ids, chat=ChatOptions(template_kwargs={"points": points}))


def options(tokens):
    greedy = SamplingParams(temperature=0.0)
    return GenerationOptions(sampling=greedy, max_new_tokens=tokens, ignore_eos=True, logprobs=1)


def deepest(program):
    kept = program._contexts.checkpoints._table
    ref, one = max(kept.items(), key=lambda item: item[1].frontier)
    return ref, one, program._contexts.checkpoints._replicas.pages(one)


def a_hold_is_lost(program):
    _, _, pages = deepest(program)
    pages[-1].holds.pop()


def a_page_was_freed_and_given_away(program):
    _, _, pages = deepest(program)
    store = program._stores.context.spaces["main"].pages
    pages[-1].alive = False
    del store._live[pages[-1].generation]
    store.pool.release(pages[-1].device.location)


def a_page_lacks_columns(program):
    _, _, pages = deepest(program)
    pages[-1].device.coverage = 1


def a_slot_was_freed(program):
    _, one, _ = deepest(program)
    program._stores.slots.release(one.slot)


def a_slot_without_an_image(program):
    """It stays allocated, and nobody could give it back."""
    _, one, _ = deepest(program)
    del program._stores.slots._images[one.slot]


def a_frontier_is_off(program):
    _, one, _ = deepest(program)
    program._stores.context.spaces["main"]._spaces.get(one.history.spaces["main"]).frontier -= 1


def a_reference_is_stale(program):
    ref, _, _ = deepest(program)
    program._contexts.checkpoints._table.remove(ref)


def a_history_is_gone(program):
    _, one, _ = deepest(program)
    program._stores.histories.release(one.history)


DAMAGE = [
    a_hold_is_lost,
    a_page_was_freed_and_given_away,
    a_page_lacks_columns,
    a_slot_was_freed,
    a_slot_without_an_image,
    a_frontier_is_off,
    a_reference_is_stale,
    a_history_is_gone,
]


def on_worker(engine, question):
    return engine._lifecycle.ask(question)


@pytest.mark.parametrize("units", ["eager", "late"])
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda one: one.__name__)
def test_a_prompt_is_read_cold_and_nobody_else_notices(build_case, units, damage) -> None:
    model = build_case("tied").model
    with engine_over(model, "eager", **SIZES) as (cold, _):
        expected = [
            cold.submit(prompt([*TALK, 9, 8, 7]), options(6)).result(WAIT),
            cold.submit(prompt(LONG, []), options(200)).result(WAIT),
        ]
    opened = engine_over(model, units, ReusePolicy(), drops_allowed=True, **SIZES)
    with opened as (engine, program):
        engine.submit(prompt(TALK), options(1)).result(WAIT)
        beside = engine.submit(prompt(LONG, []), options(200))
        beside.next_event(WAIT)
        on_worker(engine, lambda: damage(program))
        follow = engine.submit(prompt([*TALK, 9, 8, 7]), options(6)).result(WAIT)
        results = [follow, beside.result(WAIT)]
        assert follow.usage.cached_tokens == 0
        assert engine.stats().cache_drops == 1
        for result, wanted in zip(results, expected, strict=True):
            assert (result.token_ids, result.logprobs) == (wanted.token_ids, wanted.logprobs)
        again = engine.submit(prompt([*TALK, 9, 8, 7]), options(6)).result(WAIT)
        assert again.usage.cached_tokens > 0
        assert (again.token_ids, again.logprobs) == (follow.token_ids, follow.logprobs)
        assert engine.drain(WAIT)
        on_worker(engine, program.check)
        on_worker(engine, engine._core.resources.drop_all)
        capacity = on_worker(engine, program.capacity)
        assert capacity.available == capacity.total


def test_an_image_on_the_host_that_is_gone(build_case) -> None:
    model = build_case("tied").model
    with engine_over(model, "eager", **SIZES) as (cold, _):
        wanted = cold.submit(prompt([*TALK, 9, 8, 7]), options(6)).result(WAIT)
    sizes = {**SIZES, "extra_state_slots": 1}
    opened = engine_over(model, "eager", ReusePolicy(), drops_allowed=True, **sizes)
    with opened as (engine, program):
        engine.submit(prompt(TALK), options(1)).result(WAIT)
        table = program._contexts.checkpoints._table
        for seed in range(6):
            other = [(13 * place + seed) % 290 + 3 for place in range(150)]
            engine.submit(prompt(other), options(1)).result(WAIT)
            if any(one.image is not None for one in table.values()):
                break
        on_host = [one for one in table.values() if one.image is not None]
        assert on_host
        tokens = on_host[0].prefix.token_ids.tolist()
        on_worker(engine, lambda: program._stores.context.arena.free(on_host[0].image))
        follow = engine.submit(prompt([*tokens, 9, 8, 7], []), options(6)).result(WAIT)
        assert engine.stats().cache_drops == 1
        assert follow.usage.cached_tokens == 0
        again = engine.submit(prompt([*TALK, 9, 8, 7]), options(6)).result(WAIT)
        assert (again.token_ids, again.logprobs) == (wanted.token_ids, wanted.logprobs)
        on_worker(engine, program.check)


def test_what_runs_on_a_page_that_is_free_ends_the_engine(build_case) -> None:
    """The fault of the cache brings it to light: tokens of others could be written there."""
    model = build_case("tied").model
    opened = engine_over(model, "eager", ReusePolicy(), drops_allowed=True, **SIZES)
    with opened as (engine, program):
        engine.submit(prompt(TALK), options(1)).result(WAIT)
        beside = engine.submit(prompt(LONG, []), options(200))
        beside.next_event(WAIT)

        def damage() -> None:
            [sequence] = program._contexts.sequences.values()
            spaces = program._stores.context.spaces["main"]
            page = spaces.directory(sequence.history.spaces["main"])[0]
            spaces.pool.release(page.device.location)
            a_reference_is_stale(program)

        on_worker(engine, damage)
        with pytest.raises(EngineFailure):
            engine.submit(prompt([*TALK, 9, 8, 7]), options(6)).result(WAIT)
        with pytest.raises(EngineFailure):
            beside.result(WAIT)
        assert engine.availability().state is AvailabilityState.FAILED


def test_a_program_blames_its_records_and_nothing_else(build_case) -> None:
    model = build_case("tied").model
    opened = engine_over(model, "eager", ReusePolicy(), drops_allowed=True, **SIZES)
    with opened as (engine, program):
        engine.submit(prompt(TALK), options(1)).result(WAIT)
        stranger = CheckpointRef(1, 2, 3)
        for question in (program.facts, program.actions):
            with pytest.raises(CacheFault, match="stale checkpoint"):
                question(stranger)
        with pytest.raises(EngineFailure, match="stale sequence") as caught:
            program.unit_need(stranger)
        assert not isinstance(caught.value, CacheFault)
        assert on_worker(engine, program.forget) == ()
        assert not len(program._contexts.checkpoints)
        engine._core.resources.catalogue.clear()
