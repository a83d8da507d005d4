"""Places, deadlines and ends, of an engine in this process and of one in its own."""

from __future__ import annotations

import gc
import random
import threading

import pytest

from ninfer_core.contract.engine import AvailabilityState
from ninfer_core.contract.errors import (
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    QueueTimeout,
    Unavailable,
    Unsupported,
)
from ninfer_core.contract.instance import Purpose
from ninfer_core.contract.requests import (
    GenerationOptions,
    PromptInput,
)
from ninfer_core.testing.fake_remote import FakeStart

WAIT = 20.0
SLOW = FakeStart(max_context=4096, max_concurrency=2, round_seconds=0.01)


def test_an_unread_answer_keeps_its_place_until_it_is_dropped(opener, ask, eventually):
    engine = opener(FakeStart(max_concurrency=1), max_pending=0)
    handle = engine.submit(*ask(3))
    eventually(lambda: engine.stats().finished == {"output_limit": 1})
    with pytest.raises(Overloaded):
        engine.submit(*ask(3))
    del handle
    gc.collect()
    eventually(lambda: engine.stats().outstanding == 0)
    assert engine.submit(*ask(3)).result(WAIT).usage.completion_tokens == 3


def test_a_full_engine_refuses_before_it_prepares(opener, ask, law):
    engine = opener(SLOW, max_pending=1)
    handles = [engine.submit(*ask(20, seed=seed)) for seed in range(3)]
    with pytest.raises(Overloaded, match="3 requests are outstanding") as raised:
        engine.submit(PromptInput(token_ids=()), ask(1)[1])
    assert "--max-pending-requests" in raised.value.hint
    assert engine.submit(ask()[0], GenerationOptions(max_new_tokens=0)).result(WAIT).text == ""
    for seed, handle in enumerate(handles):
        assert handle.result(WAIT).token_ids == law(20, seed=seed)


def test_deadlines(opener, ask):
    engine = opener(SLOW)
    late = engine.submit(*ask(None, deadline=0.1))
    with pytest.raises(DeadlineExceeded) as raised:
        late.result(WAIT)
    assert raised.value.param == "deadline"
    running = [engine.submit(*ask(None)) for _ in range(2)]
    with pytest.raises(QueueTimeout, match="queue timeout"):
        engine.submit(*ask(1, queue_timeout=0.05)).result(WAIT)
    for handle in running:
        handle.close()


def test_draining_refuses_what_is_new_and_finishes_what_runs(opener, ask, law):
    engine = opener(SLOW)
    handle = engine.submit(*ask(60))
    assert engine.drain(0.05) is False
    assert engine.availability().state is AvailabilityState.DRAINING
    with pytest.raises(Unavailable, match="draining"):
        engine.submit(*ask(1))
    assert engine.drain() is True
    assert handle.result(WAIT).token_ids == law(60)


def test_closing_ends_everybody(opener, ask):
    engine = opener(SLOW)
    handles = [engine.submit(*ask(None)) for _ in range(4)]
    handles[0].next_event(WAIT)
    engine.close()
    engine.close()
    for handle in handles:
        *_, last = handle
        assert isinstance(last.error, Unavailable)
        assert "closed" in str(last.error)
        with pytest.raises(Unavailable):
            handle.result()
    assert engine.availability().state is AvailabilityState.CLOSED
    for again in (
        lambda: engine.submit(*ask(1)),
        lambda: engine.prepare(ask(1)[0]),
        engine.memory_summary,
    ):
        with pytest.raises(Unavailable, match="closed"):
            again()
    assert engine.drain() is True


def test_an_engine_failure_ends_everybody(opener, ask):
    start = FakeStart(max_context=4096, max_concurrency=2, round_seconds=0.02, fault="round")
    engine = opener(start)
    handles = [engine.submit(*ask(None)) for _ in range(3)]
    for handle in handles:
        with pytest.raises(Exception, match="ZeroDivisionError: a round broke") as raised:
            handle.result(WAIT)
        assert type(raised.value).__name__ == "EngineFailure"
    now = engine.availability()
    assert (now.state, now.reason) == (
        AvailabilityState.FAILED,
        "ZeroDivisionError: a round broke",
    )
    with pytest.raises(Unavailable, match="a round broke"):
        engine.submit(*ask(1))


def test_scoring_is_another_purpose(opener):
    engine = opener(FakeStart(scores=True), purpose=Purpose.CAUSAL_SCORING)
    assert engine.score([4, 5, 6, 7], 2) == [-2.0, -3.0]
    with pytest.raises(InvalidRequest) as raised:
        engine.score([1], 5)
    assert raised.value.param == "first_target"
    with pytest.raises(Unsupported, match="does not generate"):
        engine.submit(PromptInput(token_ids=(1, 2)))


def test_a_reader_that_rests_holds_up_nobody(opener, ask, law):
    engine = opener(FakeStart(max_context=4096, max_concurrency=2))
    resting = engine.submit(*ask(2000, seed=1))
    for seed in range(2, 6):
        assert engine.submit(*ask(100, seed=seed)).result(WAIT).token_ids == law(100, seed=seed)
    tokens = [token for event in resting for token in getattr(event, "token_ids", ())]
    assert tuple(tokens) == law(2000, seed=1)


def test_random_departures_leave_no_trace_and_touch_nobody_else(opener, ask, law, eventually):
    engine = opener(FakeStart(max_context=512, max_concurrency=4), max_pending=96)
    faults = []

    def client(number):
        draw = random.Random(number)
        for turn in range(12):
            seed = 100 * number + turn
            handle = engine.submit(*ask(60, seed=seed))
            leaves_after, tokens = draw.choice((None, None, 0, 3, 30)), []
            for count, event in enumerate(handle):
                tokens += getattr(event, "token_ids", ())
                if count == leaves_after:
                    draw.choice((handle.close, handle.cancel, lambda: None))()
                    break
            if tuple(tokens) != law(60, seed=seed)[: len(tokens)]:
                faults.append((seed, tokens))
            if leaves_after is None and len(tokens) != 60:
                faults.append((seed, len(tokens)))
            del handle

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    gc.collect()
    assert faults == []
    eventually(lambda: engine.stats().outstanding == 0)
    memory, stats = engine.memory_summary(), engine.stats()
    assert memory.pages_free == memory.pages_total
    assert memory.state_slots_free == memory.state_slots_total
    assert stats.submitted == sum(stats.finished.values()) == 96
    assert [engine.submit(*ask(2)).result(WAIT).usage.completion_tokens for _ in range(13)] == (
        [2] * 13
    )
