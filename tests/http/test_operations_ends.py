"""Ends that nobody asked for: clients that leave, an engine that dies; and the one that is."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.http.conftest import Served

FOLDER = str(Path(__file__).parents[2] / "bench" / "accept")
TALK = [{"role": "user", "content": "Count to fifty."}]
ENDLESS = {
    "/v1/completions": {"prompt": "one two", "ignore_eos": True, "max_tokens": 4000},
    "/v1/chat/completions": {"messages": TALK, "ignore_eos": True, "max_tokens": 4000},
}


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import http_disconnect

    yield http_disconnect
    for name in ("http_disconnect", "_server", "_setting"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def lasting():
    """`ninfer serve` with answers that last, for the tests of this file in their order."""
    served = Served.start("--max-concurrency", "4", "--max-context", "8192")
    yield served
    served.process.kill()
    served.process.wait()


def open_stream(served, path, body):
    data = json.dumps({**body, "stream": True}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(served.url + path, data, headers)
    answer = urllib.request.urlopen(request, timeout=60)
    answer.readline()
    return answer


def test_a_share_of_the_disconnects_free_their_places(lasting, script):
    assert len(script.measure(lasting.url, 20)) == 20


def test_a_dead_engine_ends_every_stream_with_an_error(lasting):
    answers = [open_stream(lasting, path, body) for path, body in ENDLESS.items()]
    pid = lasting.process.pid
    [engine] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    os.kill(int(engine), signal.SIGKILL)
    for answer in answers:
        with answer:
            *_, failure, closing, rest = answer.read().decode().split("\n\n")
        error = json.loads(failure.strip().removeprefix("data: "))["error"]
        assert error["code"] == "service_unavailable"
        assert "SIGKILL" in error["message"]
        assert (closing, rest) == ("data: [DONE]", "")


def test_a_server_without_its_engine_says_so_and_still_stops_well(lasting):
    assert lasting.get("/health").status == 503
    assert lasting.get("/ready").status == 503
    assert "ninfer_ready 0" in lasting.get("/metrics").text
    assert lasting.post("/v1/completions", prompt="one").status == 503
    lasting.process.send_signal(signal.SIGTERM)
    assert lasting.process.wait(30) == 0
