"""What a caller may rely on, of an engine in this process and of one in its own."""

from __future__ import annotations

import gc
import threading

import pytest

from ninfer_core.contract.engine import AvailabilityState
from ninfer_core.contract.errors import (
    ConstraintDeadEnd,
    ContextLengthExceeded,
    DeadlineExceeded,
    InvalidPrompt,
    InvalidRequest,
    InvalidSchema,
    Overloaded,
    QueueTimeout,
    Unavailable,
    Unsupported,
)
from ninfer_core.contract.events import (
    Channel,
    Delta,
    Failed,
    Finished,
    FinishReason,
    GenerationStart,
    PromptProgress,
)
from ninfer_core.contract.instance import Purpose
from ninfer_core.contract.requests import (
    ConsumerMode,
    GenerationOptions,
    PromptInput,
    ResponseFormat,
)
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_core.testing.fake_frontend import text_of
from ninfer_core.testing.fake_remote import FakeStart

WAIT = 20.0
SLOW = FakeStart(max_context=4096, max_concurrency=2, round_seconds=0.01)


def grammar(source):
    return PromptInput(
        token_ids=(7, 9, 11), response_format=ResponseFormat(kind="grammar", value=source)
    )


def test_events_come_in_order_and_tell_the_whole_answer(engine, ask, law):
    handle = engine.submit(*ask(20, progress=True))
    start, *middle, last = handle
    assert start == GenerationStart(10, 0, start.reuse_reason)
    progress = [event for event in middle if isinstance(event, PromptProgress)]
    deltas = [event for event in middle if isinstance(event, Delta)]
    assert middle == progress + deltas
    assert [step.done for step in progress] == [8, 9, 10]
    assert tuple(token for delta in deltas for token in delta.token_ids) == law(20)
    assert "".join(delta.text for delta in deltas) == text_of(law(20))
    assert {delta.channel for delta in deltas} == {Channel.CONTENT}
    assert isinstance(last, Finished)
    result = last.result
    assert (result.token_ids, result.text) == (law(20), text_of(law(20)))
    assert result.finish_reason is FinishReason.OUTPUT_LIMIT
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (10, 20)
    assert result.timings.prefill > 0
    assert handle.next_event() is None
    assert handle.result() is result


def test_a_prepared_prompt_is_submitted_as_it_is(engine, ask, law):
    prompt, options = ask(7)
    prepared = engine.prepare(prompt)
    assert prepared.token_ids.tolist() == list(prompt.token_ids)
    assert engine.submit(prepared, options).result(WAIT).token_ids == law(7)


def test_an_aggregate_consumer_gets_start_and_end_alone(engine, ask, law):
    start, end = engine.submit(*ask(12, consumer=ConsumerMode.AGGREGATE))
    assert isinstance(start, GenerationStart)
    assert end.result.token_ids == law(12)


def test_log_probabilities_of_prompt_and_answer(engine, ask, law):
    handle = engine.submit(*ask(6, logprobs=2, prompt_logprobs=0))
    deltas = [event for event in handle if isinstance(event, Delta)]
    rows = tuple(TokenLogprobs(token, -token / 8) for token in law(6))
    assert tuple(row for delta in deltas for row in delta.logprobs) == rows
    result = handle.result()
    assert result.logprobs == rows
    first, *scored = result.prompt_logprobs
    assert first is None
    assert [row.token_id for row in scored] == [9, 11, 13, 8, 6, 5, 12, 10, 14]


def test_many_streams_at_once_lose_and_double_nothing(opener, ask, law):
    engine = opener(FakeStart(max_concurrency=8, max_context=512))
    answers = {}

    def read(seed):
        handle = engine.submit(*ask(300, seed=seed))
        answers[seed] = tuple(
            token for event in handle if isinstance(event, Delta) for token in event.token_ids
        )

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert answers == {seed: law(300, seed=seed) for seed in range(8)}
    assert engine.stats().finished == {"output_limit": 8}


def test_cancelling_keeps_what_was_committed(engine, ask, law):
    handle = engine.submit(*ask(4000))
    for _ in range(4):
        handle.next_event(WAIT)
    handle.cancel()
    result = handle.result(WAIT)
    assert result.finish_reason is FinishReason.CANCELLED
    tokens = result.token_ids
    assert 3 <= len(tokens) < 4000
    assert tokens == law(4000)[: len(tokens)]


@pytest.mark.parametrize("way", ["close", "drop", "leave"])
def test_letting_go_ends_the_request_and_returns_its_place(engine, ask, eventually, way):
    handle = engine.submit(*ask(4000))
    handle.next_event(WAIT)
    if way == "close":
        handle.close()
        handle.close()
        with pytest.raises(RuntimeError, match="closed before"):
            handle.result()
    elif way == "drop":
        del handle
        gc.collect()
    else:
        with handle:
            pass
    eventually(lambda: engine.stats().outstanding == 0)
    handles = [engine.submit(*ask(1)) for _ in range(7)]
    assert [len(handle.result(WAIT).token_ids) for handle in handles] == [1] * 7


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


def test_errors_keep_their_types_and_fields(engine, ask):
    with pytest.raises(ContextLengthExceeded) as long:
        engine.submit(*ask(1, ids=(5,) * 5000))
    assert (long.value.prompt_tokens, long.value.max_context) == (5000, 4096)
    assert (long.value.param, long.value.code) == ("messages", "context_length_exceeded")
    with pytest.raises(InvalidSchema, match="not one") as schema:
        engine.submit(grammar("invalid"), GenerationOptions())
    assert (schema.value.pointer, schema.value.param, schema.value.hint) == ("/value", None, None)
    with pytest.raises(InvalidRequest, match="names token 99") as token:
        engine.submit(*ask(1, stop_token_ids=(99,)))
    assert token.value.param == "stop_token_ids"
    with pytest.raises(InvalidPrompt):
        engine.submit(PromptInput(token_ids=()), GenerationOptions())
    with pytest.raises(InvalidRequest, match="prompt is a str") as wrong:
        engine.submit("hello", GenerationOptions())
    assert wrong.value.hint == "give PromptInput(text=...)"
    with pytest.raises(Unsupported, match="does not score"):
        engine.score([1, 2, 3])
    assert engine.stats().outstanding == 0


def test_a_request_that_fails_has_what_was_committed(engine):
    options = GenerationOptions(max_new_tokens=20, ignore_eos=True)
    *_, last = engine.submit(grammar("dead:4"), options)
    assert isinstance(last, Failed)
    assert isinstance(last.error, ConstraintDeadEnd)
    assert len(last.partial.token_ids) == 4


def test_constrained_requests_run(engine):
    options = GenerationOptions(max_new_tokens=5, ignore_eos=True)
    assert len(engine.submit(grammar("free"), options).result(WAIT).token_ids) == 5


def test_nothing_within_the_time_is_a_timeout(opener, ask):
    engine = opener(SLOW)
    handle = engine.submit(*ask(4000))
    with pytest.raises(TimeoutError):
        handle.result(0.05)
    with pytest.raises(TimeoutError):
        [handle.next_event(0) for _ in range(1000)]
    handle.close()


def test_a_subscriber_is_woken_until_the_end(engine, ask, law):
    handle, woken, tokens = engine.submit(*ask(50)), threading.Event(), []
    handle.subscribe(woken.set)
    ended = False
    while not ended:
        assert woken.wait(WAIT)
        woken.clear()
        try:
            while (event := handle.next_event(0)) is not None:
                tokens += getattr(event, "token_ids", ())
            ended = True
        except TimeoutError:
            continue
    assert tuple(tokens) == law(50)
    again = threading.Event()
    handle.subscribe(again.set)
    assert again.is_set()


def test_the_text_side(engine):
    ids = engine.tokenize("abc")
    assert engine.count_tokens(PromptInput(text="abc")) == len(ids) == 3
    assert engine.detokenize([7, 9]) == text_of([7, 9])
    assert len(engine.token_bytes([7, 9])) == 2


def test_facts(engine, ask):
    summary, memory = engine.load_summary(), engine.memory_summary()
    assert (summary.name, summary.architecture) == ("fake", "FakeForCausalLM")
    assert (summary.max_context, summary.max_concurrency, summary.vocab_size) == (4096, 3, 64)
    assert summary.default_sampling.temperature == 0.7
    assert summary.seconds > 0
    assert memory.bytes == {"weights": 4096}
    assert memory.state_slots_total == 3
    before = engine.stats()
    engine.submit(*ask(9)).result(WAIT)
    after = engine.stats()
    assert after.submitted == before.submitted + 1
    assert after.generated_tokens == before.generated_tokens + 9
    assert len(engine.round_timings()) > 0


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
