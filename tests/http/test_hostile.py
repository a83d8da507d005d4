"""What no client should send: broken bytes, broken bodies, broken connections."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from tests.http.raw import CHAT, Wire, chat_body, head, post

JSON = "content-type: application/json"
ROUTES = [CHAT, "/v1/completions", "/v1/messages", "/v1/responses", "/tokenize", "/detokenize"]
DEEP = 100_000
RIGHT = {
    "model": "demo",
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "input": "hi",
    "tokens": [1],
    "max_tokens": 3,
}

NOT_HTTP = {
    "noise": bytes(range(256)),
    "tls hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "no version": b"GET /health\r\n\r\n",
    "wrong version": b"GET /health HTTP/x.y\r\nhost: x\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    "space in a name": b"GET /health HTTP/1.1\r\nhost: x\r\na b: c\r\n\r\n",
    "space before a colon": b"GET /health HTTP/1.1\r\nhost : x\r\n\r\n",
    "nul in a value": b"GET /health HTTP/1.1\r\nhost: x\r\na: \x00\r\n\r\n",
    "nul in the path": b"GET /hea\x00lth HTTP/1.1\r\nhost: x\r\n\r\n",
    "length is no number": head("POST", CHAT, JSON, "content-length: many"),
    "length is negative": head("POST", CHAT, JSON, "content-length: -1"),
    "length beyond reason": head("POST", CHAT, JSON, f"content-length: {'9' * 5000}"),
    "two lengths": head("POST", CHAT, JSON, "content-length: 1", "content-length: 2"),
    "chunk is no number": head("POST", CHAT, JSON, "transfer-encoding: chunked") + b"zz\r\n",
    "chunk beyond reason": head("POST", CHAT, JSON, "transfer-encoding: chunked")
    + b"f" * 40
    + b"\r\n",
    "unknown coding": head("POST", CHAT, JSON, "transfer-encoding: gzip"),
}

NOT_JSON = {
    "nested arrays": b'{"messages":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "nested objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "opened only": b"[" * DEEP,
    "not UTF-8": b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
    "cut in a character": '{"messages":[{"role":"user","content":"é'.encode()[:-1],
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "a word": b"hello",
    "a number of 5,000 digits": b'{"max_tokens":' + b"1" * 5000 + b"}",
    "cut": chat_body()[:-2],
    "two": chat_body() * 2,
}


@pytest.mark.parametrize("data", NOT_HTTP.values(), ids=NOT_HTTP)
def test_what_is_no_http_is_a_400(server, data):
    with Wire(server.port) as wire:
        answer = wire.send(data).answer()
        assert answer.status in (400, 501)
        assert answer.error["message"]
        assert wire.ended()
    assert server.request("/health").status == 200


@pytest.mark.parametrize("path", ROUTES)
def test_what_is_no_json_is_a_400(server, path):
    for name, body in NOT_JSON.items():
        with Wire(server.port) as wire:
            answer = wire.send(post(body, path=path)).answer()
            assert (name, answer.status) == (name, 400)
            assert answer.error["message"]


@pytest.mark.parametrize(
    "lines",
    [
        ("content-type: application/x-www-form-urlencoded",),
        ("content-type: multipart/form-data; boundary=x",),
        ("content-type: text/plain",),
        (),
    ],
)
def test_another_content_type_is_a_400_that_says_so(server, lines):
    body = chat_body()
    with Wire(server.port) as wire:
        wire.send(head("POST", CHAT, f"content-length: {len(body)}", *lines) + body)
        answer = wire.answer()
    assert answer.status == 400
    assert "content-type" in answer.error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (field, value)
        for field in ("temperature", "top_p", "max_tokens")
        for value in ("NaN", "Infinity", "-Infinity", "1e400", "1e308", '"NaN"')
    ],
)
def test_numbers_that_are_none_are_refused_by_name(demo, field, value):
    for path in (CHAT, "/v1/completions", "/v1/messages"):
        body = json.dumps(RIGHT | {field: "VALUE"}).replace('"VALUE"', value)
        port = int(demo.url.rpartition(":")[2])
        with Wire(port) as wire:
            answer = wire.send(post(body.encode(), path=path)).answer()
        assert answer.status == 400
        assert field in answer.error["message"]


def test_halves_of_characters_are_no_fault(demo):
    port = int(demo.url.rpartition(":")[2])
    body = json.dumps(RIGHT | {"messages": [{"role": "user", "content": "\ud800"}]})
    body = body.replace('"hi"', '"\\ud800"')
    for path in ROUTES[:-1]:
        with Wire(port) as wire:
            answer = wire.send(post(body.encode(), path=path)).answer()
        assert (path, answer.status) == (path, 400)


def test_of_a_name_that_comes_twice_the_last_counts(server):
    body = b'{"messages": [], "messages": [{"role": "user", "content": "hi"}]}'
    with Wire(server.port) as wire:
        answer = wire.send(post(body)).answer()
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == "hi"


def test_http_1_0_is_served_whole_and_closed(server):
    with Wire(server.port) as wire:
        answer = wire.send(post(chat_body(), version="1.0")).answer()
        assert json.loads(answer.body)["choices"][0]["message"]["content"] == "hi"
    with Wire(server.port) as wire:
        answer = wire.send(post(chat_body(stream=True), version="1.0")).answer()
        assert "transfer-encoding" not in answer.headers
        assert answer.body.endswith(b"data: [DONE]\n\n")


def test_pipelined_requests_are_answered_in_their_order(server):
    with Wire(server.port) as wire:
        wire.send(b"".join(post(chat_body(f"text {i}")) for i in range(5)))
        for i in range(5):
            reply = json.loads(wire.answer().body)
            assert reply["choices"][0]["message"]["content"] == f"text {i}"


def test_a_client_that_waits_for_100_continue_gets_it(server):
    body = chat_body()
    lines = (JSON, f"content-length: {len(body)}", "expect: 100-continue")
    with Wire(server.port) as wire:
        wire.send(head("POST", CHAT, *lines))
        assert wire.sock.recv(100).startswith(b"HTTP/1.1 100")
        assert wire.send(body).answer().status == 200


def test_a_request_that_is_cut_off_by_a_half_closed_socket_is_a_400(server):
    for data in (b"POST /v1/chat", head("POST", CHAT, JSON, "content-length: 99") + b"{"):
        with Wire(server.port) as wire:
            wire.send(data)
            wire.sock.shutdown(socket.SHUT_WR)
            assert wire.answer().status == 400
            assert wire.ended()
    with Wire(server.port) as wire:
        wire.sock.shutdown(socket.SHUT_WR)
        assert wire.ended()


def test_an_upgrade_is_no_reason_to_stop(server):
    with Wire(server.port) as wire:
        wire.send(head("GET", "/health", "connection: upgrade", "upgrade: websocket"))
        assert wire.answer().status == 200


def test_paths_are_only_names(server):
    for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/%00", "/%ff%fe", "//", "*"):
        with Wire(server.port) as wire:
            assert wire.send(head("GET", path)).answer().status in (400, 404)


def test_many_bad_connections_at_once_do_not_keep_a_good_one_waiting(server):
    wires = [Wire(server.port) for _ in range(200)]
    for number, wire in enumerate(wires):
        wire.send(head("POST", CHAT, JSON, "content-length: 5000")[: 20 + number])
    assert server.chat().status == 200
    for wire in wires:
        wire.close()
    assert server.chat().status == 200


def test_ten_megabytes_leave_no_memory_behind(demo):
    """Of the gateway's process; what its allocator keeps after the first rounds is not growth."""
    port = int(demo.url.rpartition(":")[2])
    large = post(chat_body("hello you " * 1_000_000))
    deep = post(NOT_JSON["nested arrays"])

    def ask():
        for data in (large, deep):
            with Wire(port, timeout=60) as wire:
                assert wire.send(data).answer().status == 400

    def resident():
        text = Path(f"/proc/{demo.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) << 10

    for _ in range(3):
        ask()
    before = resident()
    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
        thread.join()
    assert resident() - before < 32 << 20
