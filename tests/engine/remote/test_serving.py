"""A server over an engine in a process of its own: what its clients see of that process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ninfer_core import RemoteEngine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.testing.fake_remote import FakeStart, fake_plan
from ninfer_gateway_http.app import create_app
from ninfer_gateway_http.server import Server, listen, url_of
from ninfer_gateway_http.settings import ServerSettings

WAIT = 20
MAIN = "import sys; from ninfer_core.cli import main; sys.exit(main())"


@pytest.fixture
def served():
    """A server and its engine: eight streams of slow rounds."""
    start = FakeStart(max_context=4096, round_seconds=0.01)
    ready = threading.Event()
    with RemoteEngine(fake_plan(start), EngineOptions(max_concurrency=8)) as engine:
        server = Server(create_app(engine, ServerSettings(drain=0.0)), ready.set)
        with listen("127.0.0.1", 0) as sock:
            thread = threading.Thread(target=server.serve_on, args=(sock,))
            thread.start()
            assert ready.wait(WAIT)
            yield url_of(sock), engine
            server.should_exit = True
            thread.join(WAIT)
            assert not thread.is_alive()


def post(url, **fields):
    body = json.dumps(
        {"prompt": [7, 9, 11], "ignore_eos": True, "max_tokens": 3000} | fields
    ).encode()
    headers = {"content-type": "application/json"}
    return urllib.request.Request(f"{url}/v1/completions", body, headers)


def health(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=WAIT) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def read(answer, lines):
    with answer:
        lines += [line.strip() for line in answer.read().decode().split("\n\n") if line.strip()]


def test_streams_and_health_tell_of_the_death_of_the_engines_process(served):
    url, engine = served
    assert health(url)[0] == 200
    answers = [urllib.request.urlopen(post(url, stream=True), timeout=WAIT) for _ in range(8)]
    texts = [[answer.readline().decode()] for answer in answers]
    threads = [
        threading.Thread(target=read, args=pair) for pair in zip(answers, texts, strict=True)
    ]
    for thread in threads:
        thread.start()
    os.kill(engine.pid, signal.SIGKILL)
    killed = time.monotonic()
    for thread in threads:
        thread.join(WAIT)
    assert time.monotonic() - killed < WAIT
    for lines in texts:
        assert "SIGKILL" in json.loads(lines[-2].removeprefix("data: "))["error"]["message"]
        assert lines[-1] == "data: [DONE]"
    status, body = health(url)
    assert (status, body["status"]) == (503, "failed")
    assert "SIGKILL" in body["reason"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(post(url), timeout=WAIT)
    assert refused.value.code == 503


def test_a_client_that_leaves_frees_its_lane(served, eventually):
    url, engine = served
    answer = urllib.request.urlopen(post(url, stream=True), timeout=WAIT)
    eventually(lambda: engine.stats().running == 1)
    answer.close()
    eventually(lambda: engine.stats().outstanding == 0)


@pytest.fixture
def command():
    """`ninfer serve` of the demo model; its address and the process of its engine."""
    arguments = ["serve", "demo", "--device", "cpu", "--port", "0", "--max-context", "512"]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments], stderr=subprocess.PIPE, text=True
    )
    while not (line := process.stderr.readline()).startswith("ninfer: url: "):
        assert line, "the server ended"
    children = Path(f"/proc/{process.pid}/task/{process.pid}").parent
    pids = [pid for task in children.iterdir() for pid in (task / "children").read_text().split()]
    assert len(pids) == 1
    yield process, line.split()[2].removesuffix("/v1"), int(pids[0])
    process.kill()
    process.wait()
    process.stderr.close()


def test_serve_stops_when_asked_and_leaves_nobody(command, eventually):
    process, url, pid = command
    answer = urllib.request.urlopen(
        post(url, prompt="Name a colour.", max_tokens=64, stream=True), timeout=WAIT
    )
    assert answer.readline().startswith(b"data: ")
    # As a service manager or a terminal does: the signal reaches both processes.
    os.kill(pid, signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    lines = []
    read(answer, lines)
    assert lines[-1] == "data: [DONE]"
    assert '"finish_reason"' in lines[-2]
    assert process.wait(WAIT) == 0
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    rest = process.stderr.read()
    assert "stopped" in rest
    assert "Traceback" not in rest
