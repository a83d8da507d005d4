"""Requests over the real worker thread: results, iteration, cancels, dropped handles, summaries."""

from __future__ import annotations

import threading

import pytest

from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.errors import Overloaded, Unavailable, Unsupported
from ninfer_core.contract.events import Finished, FinishReason, GenerationStart
from ninfer_core.contract.instance import Purpose
from ninfer_core.contract.requests import PromptInput
from ninfer_core.engine import Engine
from ninfer_core.testing.fake_frontend import text_of
from ninfer_core.testing.fake_instance import FakeScoring, fake_factory, fake_opened
from ninfer_core.testing.fake_law import continuation

PROMPT = [7, 9, 11, 13, 8, 6, 5, 12, 10, 14]
WAIT = 20.0


def prompt(first=7):
    return PromptInput(token_ids=[first, *PROMPT[1:]])


@pytest.fixture
def engine():
    with Engine(fake_factory(), EngineOptions(max_concurrency=3, max_pending=4)) as opened:
        yield opened


@pytest.fixture
def endless(endless_factory):
    """Room for outputs that take far longer than any test."""
    options = EngineOptions(max_concurrency=2, max_pending=2, queue_timeout=None)
    with Engine(endless_factory, options) as opened:
        yield opened


def test_results_of_many_threads_are_everybodys_own(engine, options):
    results = {}

    def ask(seed):
        handle = engine.submit(prompt(seed + 3), options(8, seed=seed))
        results[seed] = handle.result(WAIT)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    for seed in range(7):
        expected = continuation([seed + 3, *PROMPT[1:]], seed, 64, 8)
        assert results[seed].token_ids == tuple(expected)
    assert engine.stats().outstanding == 0


def test_iteration_gives_the_events_in_order_and_the_result_stays(engine, options):
    with engine.submit(prompt(), options(6)) as handle:
        events = list(handle)
        assert isinstance(events[0], GenerationStart)
        assert isinstance(events[-1], Finished)
        assert "".join(delta.text for delta in events[1:-1]) == events[-1].result.text
        assert handle.result(0) is events[-1].result
        assert handle.next_event(0) is None


def test_waiting_for_an_event_can_time_out(endless, options):
    blocked = [endless.submit(prompt(), options(None, ignore_eos=True)) for _ in range(2)]
    waiting = endless.submit(prompt(), options(3))
    with pytest.raises(TimeoutError):
        waiting.result(0.05)
    for handle in blocked:
        handle.close()
    assert len(waiting.result(WAIT).token_ids) == 3


def test_cancel_from_another_thread_keeps_what_was_committed(endless, options):
    handle = endless.submit(prompt(), options(None, ignore_eos=True))
    events = iter(handle)
    shown = [next(events) for _ in range(12)]
    threading.Thread(target=handle.cancel).start()
    result = handle.result(WAIT)
    assert result.finish_reason is FinishReason.CANCELLED
    seen = [token for delta in shown[1:] for token in delta.token_ids]
    assert list(result.token_ids[: len(seen)]) == seen
    assert result.text == text_of(result.token_ids)


def test_a_dropped_handle_abandons_its_request(endless, options):
    handle = endless.submit(prompt(), options(None, ignore_eos=True))
    handle.next_event(WAIT)
    del handle
    assert endless.drain(WAIT)
    stats = endless.stats()
    assert stats.finished == {"cancelled": 1}
    assert stats.outstanding == 0


def test_a_handle_left_in_a_with_block_is_closed(endless, options):
    with endless.submit(prompt(), options(None, ignore_eos=True)) as handle:
        handle.next_event(WAIT)
    with pytest.raises(RuntimeError, match="closed before"):
        handle.result(0)
    assert endless.drain(WAIT)
    assert endless.stats().outstanding == 0


def test_the_engine_refuses_what_it_cannot_hold(endless, options):
    held = [endless.submit(prompt(), options(None, ignore_eos=True)) for _ in range(4)]
    with pytest.raises(Overloaded, match="4"):
        endless.submit(prompt(), options(1))
    assert endless.submit(prompt(), options(0)).result(WAIT).token_ids == ()
    held[0].close()
    for handle in held[1:]:
        handle.cancel()
        handle.result(WAIT)
    assert len(endless.submit(prompt(), options(2, ignore_eos=True)).result(WAIT).token_ids) == 2


def test_summaries(engine, options):
    summary = engine.load_summary()
    assert (summary.name, summary.architecture) == ("fake", "FakeForCausalLM")
    assert (summary.max_context, summary.max_concurrency, summary.vocab_size) == (64, 3, 64)
    memory = engine.memory_summary()
    assert memory.pages_total == memory.pages_free == {"main": 64}
    assert (memory.state_slots_total, memory.bytes) == (8, {"weights": 4096})
    engine.submit(prompt(), options(4, ignore_eos=True)).result(WAIT)
    stats = engine.stats()
    assert (stats.submitted, stats.finished, stats.failed) == (1, {"output_limit": 1}, {})
    assert (stats.prompt_tokens, stats.generated_tokens) == (10, 4)
    assert (stats.running, stats.waiting, stats.paused, stats.outstanding) == (0, 0, 0, 0)
    assert engine.count_tokens(prompt()) == 10
    assert engine.tokenize("ab") == [3, 4]
    assert engine.detokenize([3, 4]) == "de"
    assert engine.token_bytes([3, 4]) == [b"d", b"e"]
    assert engine.prepare(prompt()).length == 10


def test_generation_does_not_score_and_scoring_does_not_generate(engine, options):
    with pytest.raises(Unsupported, match="CAUSAL_SCORING"):
        engine.score([1, 2, 3])
    scoring = EngineOptions(purpose=Purpose.CAUSAL_SCORING)
    with Engine(lambda: fake_opened(program=FakeScoring()), scoring) as scorer:
        assert scorer.score([5, 6, 7, 8], 2) == [-2.0, -3.0]
        assert scorer.memory_summary().bytes == {"weights": 4096}
        with pytest.raises(Unsupported, match="GENERATION"):
            scorer.submit(prompt(), options(1))
        for bad in (0, 4):
            with pytest.raises(Exception, match="first_target"):
                scorer.score([5, 6, 7], bad)
        with pytest.raises(Exception, match="the context holds 64"):
            scorer.score([5] * 65)
    with pytest.raises(Unavailable):
        scorer.score([5, 6])
