"""The real worker thread: results, iteration, cancels, dropped handles, drain, close, death."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from ninfer_core.contract.engine import AvailabilityState, EngineOptions
from ninfer_core.contract.errors import EngineFailure, Overloaded, Unavailable, Unsupported
from ninfer_core.contract.events import Failed, Finished, FinishReason, GenerationStart
from ninfer_core.contract.instance import Purpose
from ninfer_core.contract.requests import PromptInput
from ninfer_core.contract.resources import ProgramLimits
from ninfer_core.engine import Engine, InvalidOption
from ninfer_core.testing.fake_frontend import FakeFrontend, text_of
from ninfer_core.testing.fake_instance import FakeScoring, fake_factory, fake_opened
from ninfer_core.testing.fake_law import continuation
from ninfer_core.testing.fake_transactions import FakeConfig

PROMPT = [7, 9, 11, 13, 8, 6, 5, 12, 10, 14]
WAIT = 20.0
LONG = ProgramLimits(max_context=1 << 20, max_concurrency=2, prefill_chunk=8, vocab_rows=64)
ENDLESS = FakeConfig(pages=1 << 20)


def prompt(first=7):
    return PromptInput(token_ids=[first, *PROMPT[1:]])


@pytest.fixture
def engine():
    with Engine(fake_factory(), EngineOptions(max_concurrency=3, max_pending=4)) as opened:
        yield opened


@pytest.fixture
def endless():
    """Room for outputs that take far longer than any test."""
    options = EngineOptions(max_concurrency=2, max_pending=2, queue_timeout=None)
    with Engine(fake_factory(LONG, ENDLESS), options) as opened:
        yield opened


def held_up(opened):
    """An opened fake whose rounds wait for an event; and the events "in a round", "go on"."""
    entered, go_on = threading.Event(), threading.Event()
    program = opened.instance.program
    real = program.launch_decode

    def launch(rows, **rest):
        entered.set()
        assert go_on.wait(WAIT)
        return real(rows, **rest)

    program.launch_decode = launch
    return entered, go_on


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


def test_close_while_running_ends_everybody(options):
    engine = Engine(fake_factory(LONG, ENDLESS), EngineOptions(max_concurrency=2))
    running = engine.submit(prompt(), options(None, ignore_eos=True))
    waiting = [engine.submit(prompt(), options(None, ignore_eos=True)) for _ in range(3)]
    running.next_event(WAIT)
    engine.close()
    engine.close()
    for handle in (running, *waiting):
        *_, last = handle
        assert isinstance(last, Failed)
        assert isinstance(last.error, Unavailable)
        with pytest.raises(Unavailable):
            handle.result(WAIT)
    assert engine.availability().state is AvailabilityState.CLOSED
    for ask in (
        lambda: engine.submit(prompt(), options(1)),
        lambda: engine.prepare(prompt()),
        engine.memory_summary,
    ):
        with pytest.raises(Unavailable, match="closed"):
            ask()


def test_close_runs_the_instances_close_once_on_the_worker_thread():
    opened = fake_opened()
    threads = []
    close = opened.instance.close
    opened.instance.close = lambda: (threads.append(threading.current_thread().name), close())
    Engine(lambda: opened).close()
    assert threads == ["ninfer-worker"]
    assert opened.instance.closed == 1
    assert opened.instance.program.closed


def test_what_closing_raises_reaches_the_closer():
    opened = fake_opened()

    def refuse():
        raise ValueError("device is gone")

    opened.instance.close = refuse
    engine = Engine(lambda: opened)
    with pytest.raises(ValueError, match="device is gone"):
        engine.close()


def test_drain_lets_the_running_finish_and_refuses_the_new(options):
    opened = fake_opened()
    entered, go_on = held_up(opened)
    with Engine(lambda: opened) as engine:
        handle = engine.submit(prompt(), options(5, ignore_eos=True))
        assert entered.wait(WAIT)
        assert engine.drain(0.05) is False
        with pytest.raises(Unavailable, match="draining"):
            engine.submit(prompt(), options(1))
        go_on.set()
        assert engine.drain(WAIT) is True
        assert len(handle.result(WAIT).token_ids) == 5


def test_a_failing_start_reaches_the_opener_and_closes_nothing():
    def factory():
        raise ValueError("layer type 'linear_attention_v9' is not supported")

    with pytest.raises(ValueError, match="linear_attention_v9"):
        Engine(factory)
    assert not [t for t in threading.enumerate() if t.name == "ninfer-worker" and t.is_alive()]


def test_a_start_that_fails_after_the_build_closes_the_instance():
    opened = fake_opened()
    del opened.instance.program
    opened.instance.close = lambda: setattr(opened.instance, "closed", 1)
    with pytest.raises(AttributeError):
        Engine(lambda: opened)
    assert opened.instance.closed == 1


def test_a_start_that_fails_in_the_frontend_closes_the_instance(monkeypatch):
    opened = fake_opened()

    def refuse(frontend):
        raise ValueError("no tokenizer")

    monkeypatch.setattr(FakeFrontend, "vocab_size", property(refuse))
    with pytest.raises(ValueError, match="no tokenizer"):
        Engine(lambda: opened)
    assert opened.instance.closed == 1


@pytest.mark.parametrize("error", [RuntimeError("kernel died"), SystemExit("gone")])
def test_a_dying_worker_reaches_every_waiter(options, error):
    opened = fake_opened()
    entered, go_on = held_up(opened)
    with Engine(lambda: opened, EngineOptions(max_concurrency=3)) as engine:
        handles = [engine.submit(prompt(), options(9, ignore_eos=True)) for _ in range(7)]
        outcomes = []

        def wait(handle):
            try:
                outcomes.append(handle.result(WAIT))
            except EngineFailure as failure:
                outcomes.append(str(failure))

        waiters = [threading.Thread(target=wait, args=(handle,)) for handle in handles[1:]]
        for waiter in waiters:
            waiter.start()
        assert entered.wait(WAIT)
        opened.instance.program.faults.arm("commit", error)
        go_on.set()
        for waiter in waiters:
            waiter.join(WAIT)
        assert outcomes == [f"{type(error).__name__}: {error}"] * 6
        assert engine.availability().state is AvailabilityState.FAILED
        assert str(error) in engine.availability().reason
        with pytest.raises(Unavailable, match=str(error)):
            engine.submit(prompt(), options(1))
        *_, last = handles[0]
        assert last.error.code == "service_unavailable"
    assert opened.instance.closed == 1


def test_questions_to_a_dying_worker_are_answered(options):
    opened = fake_opened()
    entered, go_on = held_up(opened)
    with Engine(lambda: opened) as engine:
        handle = engine.submit(prompt(), options(9))
        assert entered.wait(WAIT)
        answers = []

        def ask():
            try:
                answers.append(engine.memory_summary())
            except Unavailable as error:
                answers.append(error)

        asker = threading.Thread(target=ask)
        asker.start()
        opened.instance.program.faults.arm("commit", RuntimeError("kernel died"))
        go_on.set()
        asker.join(WAIT)
        assert len(answers) == 1
        with pytest.raises(EngineFailure):
            handle.result(WAIT)


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


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("max_concurrency", 0, "between 1 and 8"),
        ("max_concurrency", 9, "between 1 and 8"),
        ("max_pending", -1, "at least 0"),
        ("prefill_chunk", 0, "at least 1"),
        ("max_context", 0, "at least 1"),
        ("queue_timeout", -0.5, "at least 0"),
        ("devices", (), "devices is empty"),
    ],
)
def test_a_bad_option_is_named_before_anything_is_built(field, value, said):
    def factory():
        raise AssertionError("the instance was built")

    with pytest.raises(InvalidOption, match=said) as caught:
        Engine(factory, EngineOptions(**{field: value}))
    assert field in str(caught.value)


def test_a_dropped_engine_closes_itself():
    opened = fake_opened()
    engine = Engine(lambda: opened)
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
    assert opened.instance.closed == 1


def test_an_engine_left_open_does_not_keep_the_process():
    script = (
        "from ninfer_core.engine import Engine\n"
        "from ninfer_core.testing.fake_instance import fake_factory\n"
        "engine = Engine(fake_factory())\n"
        "close = engine._opened.instance.close\n"
        "engine._opened.instance.close = lambda: (print('closed'), close())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "closed\n"
    assert done.stderr == ""
