"""The life and the deaths of the engine's process."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from ninfer_core import RemoteEngine
from ninfer_core.contract.engine import AvailabilityState, EngineOptions
from ninfer_core.contract.errors import EngineFailure, InvalidSchema, Unavailable
from ninfer_core.contract.events import Failed
from ninfer_core.engine import InvalidOption
from ninfer_core.engine.remote import link
from ninfer_core.plugins import PluginError, Selection
from ninfer_core.plugins.report import PluginPin
from ninfer_core.testing.fake_remote import EXIT_CODE, FakeStart, fake_plan

WAIT = 20.0
SLOW = FakeStart(max_context=4096, max_concurrency=2, round_seconds=0.005)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def test_killing_the_process_ends_every_request_with_the_reason(remote, ask):
    engine = remote(SLOW)
    handles = [engine.submit(*ask(None)) for _ in range(3)]
    for handle in handles[:2]:
        handle.next_event(WAIT)
    os.kill(engine.pid, signal.SIGKILL)
    said = rf"the engine's process {engine.pid} was killed by signal 9 \(SIGKILL\)"
    for handle in handles:
        with pytest.raises(EngineFailure, match=said):
            handle.result(2.0)
        assert handle.next_event() is None
    now = engine.availability()
    assert now.state is AvailabilityState.FAILED
    assert "SIGKILL" in now.reason
    for again in (lambda: engine.submit(*ask(1)), engine.memory_summary):
        with pytest.raises(Unavailable, match="SIGKILL"):
            again()
    assert engine.stats().running == 0
    engine.close()
    assert engine.availability().state is AvailabilityState.FAILED


def test_a_stream_of_a_dead_engine_ends_with_an_event(remote, ask):
    engine = remote(replace(SLOW, fault="exit"))
    *_, last = engine.submit(*ask(None))
    assert isinstance(last, Failed)
    assert isinstance(last.error, Unavailable)
    assert f"exited with code {EXIT_CODE}" in str(last.error)


def test_signals_are_the_business_of_the_serving_process(remote, ask, law):
    engine = remote(SLOW)
    handle = engine.submit(*ask(20))
    handle.next_event(WAIT)
    os.kill(engine.pid, signal.SIGINT)
    os.kill(engine.pid, signal.SIGTERM)
    assert handle.result(WAIT).token_ids == law(20)
    assert os.getpgid(engine.pid) != os.getpgid(0)


def test_a_start_that_fails_raises_the_same_error(remote):
    with pytest.raises(InvalidSchema, match="the start failed") as raised:
        remote(FakeStart(fault="start"))
    assert (raised.value.pointer, raised.value.param) == ("/a/0", "field")
    with pytest.raises(ZeroDivisionError, match="by hand") as crash:
        remote(FakeStart(fault="crash"))
    assert "open_locally" in crash.value.__notes__[0]
    with pytest.raises(InvalidOption, match="max_pending"):
        remote(FakeStart(), max_pending=-1)


def test_what_starts_is_told(ask):
    told = []
    with RemoteEngine(fake_plan(FakeStart()), EngineOptions(warm_up=True), progress=told.append):
        pass
    assert told == [
        "starting the engine's process",
        "loading plug-ins",
        "loading the model",
        "warming up",
    ]


def test_what_is_logged_there_is_logged_here(remote, caplog):
    remote(FakeStart())
    assert "opening" not in caplog.text
    caplog.set_level(logging.INFO, "ninfer")
    remote(FakeStart(vocab=77))
    [record] = [record for record in caplog.records if record.name == "ninfer.fake"]
    assert record.levelno == logging.INFO
    assert '"vocab": 77' in record.getMessage()


@pytest.mark.parametrize(("version", "name"), [("0.0.0", "builtin"), ("1", "not_installed")])
def test_other_plugins_than_the_parents_are_refused(version, name):
    pin = PluginPin(name=name, dist="ninfer-core", version=version)
    selection = Selection(autoload=False, pins=(pin,))
    with pytest.raises(PluginError, match=name):
        RemoteEngine(fake_plan(FakeStart(), selection))


def test_a_text_side_that_does_not_open_leaves_no_process(monkeypatch):
    started = []
    monkeypatch.setattr(
        link, "ChildProcess", lambda real=link.ChildProcess: started.append(real()) or started[0]
    )

    def broken():
        raise InvalidSchema("no template")

    with pytest.raises(InvalidSchema, match="no template"):
        RemoteEngine(replace(fake_plan(FakeStart()), text_side=broken))
    assert not alive(started[0].pid)


def test_a_child_that_does_not_close_is_killed(remote, monkeypatch):
    monkeypatch.setattr(link, "CLOSE_SECONDS", 0.3)
    monkeypatch.setattr(link, "EXIT_SECONDS", 0.2)
    engine = remote(FakeStart(fault="close"))
    engine.close()
    assert not alive(engine.pid)
    assert engine.availability().state is AvailabilityState.CLOSED


def test_an_engine_that_is_dropped_ends_its_process(eventually):
    engine = RemoteEngine(fake_plan(FakeStart()))
    pid = engine.pid
    del engine
    gc.collect()
    eventually(lambda: not alive(pid))


def test_nothing_is_left_open():
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(2):
        RemoteEngine(fake_plan(FakeStart())).close()
    gc.collect()
    assert descriptors() == before


GRANDPARENT = """
import sys, time
from ninfer_core import RemoteEngine
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.testing.fake_remote import FakeStart, fake_plan

start = FakeStart(max_context=1 << 20, round_seconds=0.002, {fault})
engine = RemoteEngine(fake_plan(start))
handle = engine.submit(PromptInput(token_ids=(7, 9, 11)), GenerationOptions(ignore_eos=True))
handle.next_event()
print(engine.pid, flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize("fault", ["", "fault='close'"])
def test_a_child_whose_parent_was_killed_ends(fault, eventually):
    """In good order, or without it once its time is over."""
    script = GRANDPARENT.format(fault=fault)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        try:
            assert alive(pid)
            parent.kill()
            eventually(lambda: not alive(pid))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_parent_that_ends_without_closing_ends_its_child(eventually):
    script = GRANDPARENT.format(fault="").replace("time.sleep(3600)", "")
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=60, check=True
    )
    pid, started = int(done.stdout), time.monotonic()
    eventually(lambda: not alive(pid))
    assert time.monotonic() - started < WAIT
