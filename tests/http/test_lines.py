"""Requests in line for a thread: whom they hold up, how many may stand there, and who leaves."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ninfer_core.testing.scripted_engine import echo
from ninfer_gateway_http import bodies, threads
from ninfer_gateway_http.settings import ServerSettings
from tests.http.raw import CHAT, Wire, chat_body, post

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
FORMED = chat_body(tools=[TOOL])
LARGE = " " * (bodies.AT_ONCE_BYTES + 1)
INPUT, SMALL = b'{"input": "hi"}', chat_body()


class _Reader:
    """Reads large bodies when it ``may``; ``read`` are those that it began with."""

    def __init__(self, monkeypatch):
        self.may = threading.Event()
        self.read = []
        really = bodies._read

        def read(body):
            self.read.append(body)
            assert self.may.wait(20)
            return really(body)

        monkeypatch.setattr(bodies, "_read", read)


@pytest.fixture
def reader(monkeypatch):
    reader = _Reader(monkeypatch)
    yield reader
    reader.may.set()


def line(in_line):
    return threads.Line("test", "long inputs to be read", threads=1, in_line=in_line)


def test_short_requests_wait_for_no_long_bodies(serve, reader, eventually):
    server = serve()
    with ThreadPoolExecutor(2) as clients:
        asked = [clients.submit(server.chat, LARGE) for _ in range(2)]
        eventually(lambda: len(reader.read) == 2)
        try:
            for path in ("/v1/responses", "/v1/responses/input_tokens"):
                answered = ThreadPoolExecutor(1).submit(server.request, path, INPUT)
                assert answered.result(10).status == 200
        finally:
            reader.may.set()
        assert [reply.result().status for reply in asked] == [400] * 2  # longer than the context


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        (CHAT, 429, "server_overloaded"),
        ("/v1/responses", 429, "server_overloaded"),
        ("/v1/messages", 529, "overloaded_error"),
    ],
)
def test_more_long_bodies_than_may_stand_in_line_are_asked_to_come_again(
    serve, monkeypatch, path, status, code
):
    server = serve()
    monkeypatch.setattr(threads, "_long", line(-1))
    reply = server.request(path, SMALL + LARGE.encode())
    assert (reply.status, reply.headers["retry-after"]) == (status, "1")
    assert reply.error.get("code", reply.error["type"]) == code
    assert server.request(CHAT, SMALL).status == 200


def test_the_body_of_a_peer_that_left_is_not_read(serve, reader, monkeypatch, eventually):
    server = serve()
    held = line(9)
    monkeypatch.setattr(threads, "_long", held)
    with Wire(server.port) as first:
        first.send(post(chat_body("first") + LARGE.encode()))
        eventually(lambda: len(reader.read) == 1)
        with Wire(server.port) as other:
            other.send(post(chat_body("other") + LARGE.encode()))
            eventually(lambda: held._count == 2)
        eventually(lambda: held._count == 1)
        reader.may.set()
        assert first.answer().status == 200
    assert [json.loads(body)["messages"][0]["content"] for body in reader.read] == ["first"]


class _Compiler:
    """What a request with tools waits for, one at a time: a script that holds until it ``may``."""

    def __init__(self, serve, **settings):
        self.may, self.entered = threading.Event(), threading.Event()
        self.server = serve(self, ServerSettings(drain=0.0, **settings))
        self.line = threads.forms_line(threads=1, in_line=9)
        self.server.server._gateway._forms = self.line

    def __call__(self, prompt, options):
        if prompt.tools:
            self.entered.set()
            assert self.may.wait(20)
        return echo(prompt, options)

    def occupied(self):
        """A request that is at work."""
        wire = Wire(self.server.port).send(post(FORMED))
        assert self.entered.wait(20)
        return wire


@pytest.fixture
def compiler(serve):
    made = []

    def make(**settings):
        made.append(_Compiler(serve, **settings))
        return made[-1]

    yield make
    for one in made:
        one.may.set()


@pytest.mark.parametrize(
    ("limit", "status", "code"),
    [
        ("queue_timeout", 503, "request_queue_timeout"),
        ("request_timeout", 504, "request_deadline_exceeded"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_who_waited_too_long_in_line_is_refused_there(compiler, limit, status, code, path):
    held = compiler(**{limit: 0.5})
    with held.occupied():
        reply = held.server.request(path, FORMED)
        assert (reply.status, reply.error["code"]) == (status, code)
        held.may.set()
    assert len(held.server.engine.requests) == 1


def test_the_wait_in_line_is_taken_off_what_the_engine_may_take(compiler, eventually):
    held = compiler(queue_timeout=20.0, request_timeout=30.0)
    with held.occupied(), Wire(held.server.port) as other:
        other.send(post(FORMED))
        eventually(lambda: held.line._count == 2)
        began = time.monotonic()
        time.sleep(0.3)
        waited = time.monotonic() - began
        held.may.set()
        assert other.answer().status == 200
    options = held.server.engine.requests[-1][1]
    assert 0 < options.queue_timeout < 20 - waited
    assert 0 < options.deadline < 30 - waited


@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/v1/messages/count_tokens"])
def test_a_peer_that_leaves_the_line_is_waited_for_no_longer(compiler, eventually, path):
    held = compiler()
    with held.occupied() as first:
        with Wire(held.server.port) as other:
            tool = {"name": "look", "input_schema": {"type": "object"}}
            body = chat_body(tools=[tool], model="scripted") if "count" in path else FORMED
            other.send(post(body, path=path))
            eventually(lambda: held.line._count == 2)
        eventually(lambda: held.line._count == 1)
        held.may.set()
        assert first.answer().status == 200
    assert len(held.server.engine.requests) == 1


def test_what_is_submitted_for_a_peer_that_left_is_cancelled(compiler, eventually):
    held = compiler()
    replies = held.server.server._gateway.metrics.replies
    held.occupied().close()
    eventually(lambda: replies["POST", CHAT, 499] == 1)
    held.may.set()
    eventually(lambda: held.server.engine.stats().submitted == 1)
    eventually(lambda: held.server.engine.handles[0].cancelled.is_set())
