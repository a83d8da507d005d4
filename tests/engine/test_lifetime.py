"""The life of an engine and its worker thread: start, drain, close, death, being dropped."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from ninfer_core.contract.engine import AvailabilityState, EngineOptions
from ninfer_core.contract.errors import EngineFailure, Unavailable
from ninfer_core.contract.events import Failed
from ninfer_core.contract.requests import PromptInput
from ninfer_core.engine import Engine, InvalidOption
from ninfer_core.testing.fake_frontend import FakeFrontend
from ninfer_core.testing.fake_instance import fake_opened

PROMPT = PromptInput(token_ids=[7, 9, 11, 13, 8, 6, 5, 12, 10, 14])
WAIT = 20.0


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


def test_close_while_running_ends_everybody(endless_factory, options):
    engine = Engine(endless_factory, EngineOptions(max_concurrency=2))
    running = engine.submit(PROMPT, options(None, ignore_eos=True))
    waiting = [engine.submit(PROMPT, options(None, ignore_eos=True)) for _ in range(3)]
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
        lambda: engine.submit(PROMPT, options(1)),
        lambda: engine.prepare(PROMPT),
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
        handle = engine.submit(PROMPT, options(5, ignore_eos=True))
        assert entered.wait(WAIT)
        assert engine.drain(0.05) is False
        with pytest.raises(Unavailable, match="draining"):
            engine.submit(PROMPT, options(1))
        go_on.set()
        assert engine.drain(WAIT) is True
        assert len(handle.result(WAIT).token_ids) == 5


def test_a_failing_start_reaches_the_opener_and_closes_nothing():
    def factory():
        raise ValueError("layer type 'linear_attention_v9' is not supported")

    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="linear_attention_v9"):
        Engine(factory)
    assert set(threading.enumerate()) <= before


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


@pytest.mark.parametrize("error", [RuntimeError("kernel died"), SystemExit("gone")])
def test_a_dying_worker_reaches_every_waiter(options, error):
    opened = fake_opened()
    entered, go_on = held_up(opened)
    with Engine(lambda: opened, EngineOptions(max_concurrency=3)) as engine:
        handles = [engine.submit(PROMPT, options(9, ignore_eos=True)) for _ in range(7)]
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
            engine.submit(PROMPT, options(1))
        *_, last = handles[0]
        assert last.error.code == "service_unavailable"
    assert opened.instance.closed == 1


def test_questions_to_a_dying_worker_are_answered(options):
    opened = fake_opened()
    entered, go_on = held_up(opened)
    with Engine(lambda: opened) as engine:
        handle = engine.submit(PROMPT, options(9))
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
