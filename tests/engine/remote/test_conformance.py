"""What a caller may rely on, of an engine in this process and of one in its own."""

from __future__ import annotations

import gc
import threading

import pytest

from ninfer_core.contract.errors import (
    ConstraintDeadEnd,
    ContextLengthExceeded,
    InvalidPrompt,
    InvalidRequest,
    InvalidSchema,
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
