"""Requests in line for a thread: whom they hold up, how many may stand there, and who leaves."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ninfer_gateway_http import bodies, threads
from tests.http.raw import CHAT, Wire, chat_body, post

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
