"""Keys, origins, limits of size and time, and the log, of a server in this process."""

from __future__ import annotations

import json
import logging
import socket
import time

import anthropic
import pytest

from ninfer_core.contract.errors import Overloaded
from ninfer_core.contract.events import Channel, Delta
from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http.app import create_app
from ninfer_gateway_http.log_format import JsonFormatter
from ninfer_gateway_http.middleware import MAX_HEADERS
from ninfer_gateway_http.settings import ServerSettings
from tests.http.raw import CHAT, Wire, chat_body, head, post

HELLO = [{"role": "user", "content": "hi"}]
KEYS = ("one", "zwölf")


def closed(**settings):
    return ServerSettings(drain=0.0, **settings)


@pytest.fixture(scope="session")
def routes():
    """Every path and method that the application answers, of its own document and beside it."""
    from ninfer_core.testing.scripted_engine import ScriptedEngine

    paths = create_app(ScriptedEngine()).openapi()["paths"]
    listed = [(m.upper(), p) for p, methods in paths.items() for m in methods if p != "/health"]
    extra = ("/", "/metrics", "/openapi.json", "/docs", "/nothing", "/health/", "/HEALTH")
    return listed + [("GET", path) for path in extra] + [("OPTIONS", CHAT), ("HEAD", "/v1/models")]


def test_no_route_but_health_is_open(serve, routes):
    server = serve(settings=closed(api_keys=KEYS))
    for method, path in routes:
        with Wire(server.port) as wire:
            answer = wire.send(
                head(method, path, "content-length: 0", "connection: close")
            ).answer()
            assert (method, path, answer.status) == (method, path, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
    assert server.request("/health").status == 200


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"authorization: Bearer one", 200),
        (b"authorization: bearer one", 200),
        ("authorization: Bearer zwölf".encode(), 200),
        ("x-api-key: zwölf".encode(), 200),
        (b"authorization: Bearer\r\nx-api-key: one", 200),
        (b"authorization: Bearer on", 401),
        (b"authorization: Bearer onee", 401),
        (b"authorization: one", 401),
        (b"authorization: Basic one", 401),
        (b"x-api-key: ", 401),
        (b"authorization: Bearer \xff\xfe", 401),
        (b"x-api-key: two", 401),
    ],
)
def test_only_a_key_opens(serve, line, status):
    server = serve(settings=closed(api_keys=KEYS))
    with Wire(server.port) as wire:
        request = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + line + b"\r\n\r\n"
        assert wire.send(request).answer().status == status


def test_a_refusal_speaks_the_dialect_of_its_route(serve):
    server = serve(settings=closed(api_keys=KEYS))
    assert server.chat().error["type"] == "authentication_error"
    client = anthropic.Anthropic(base_url=server.url, api_key="no", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError) as caught:
        client.messages.create(model="scripted", max_tokens=5, messages=HELLO)
    assert caught.value.body["error"]["type"] == "authentication_error"
    assert caught.value.request_id


def test_pages_of_other_origins_are_served_only_when_named(serve):
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    asked |= {"access-control-request-headers": "authorization,content-type"}
    lines = [f"{name}: {value}" for name, value in asked.items()]
    plain = serve()
    with Wire(plain.port) as wire:
        answer = wire.send(head("OPTIONS", CHAT, *lines)).answer()
        assert answer.status == 405
        assert not any(name.startswith("access-control") for name in answer.headers)
    open_to_a = serve(settings=closed(api_keys=KEYS, cors_origins=("https://a.example",)))
    with Wire(open_to_a.port) as wire:
        answer = wire.send(head("OPTIONS", CHAT, *lines)).answer()
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        assert "authorization" in answer.headers["access-control-allow-headers"]
    mine = {"origin": "https://a.example"}
    refused = open_to_a.request("/v1/models", headers=mine)
    assert refused.status == 401
    assert refused.headers["access-control-allow-origin"] == "https://a.example"
    other = open_to_a.request("/health", headers={"origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers


def test_a_large_body_is_refused_before_it_is_sent(serve):
    server = serve(settings=closed(max_body_bytes=1000))
    with Wire(server.port) as wire:
        lines = ("content-type: application/json", "content-length: 1001", "expect: 100-continue")
        answer = wire.send(head("POST", CHAT, *lines)).answer()
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


def test_a_chunked_body_is_counted_while_it_is_read(serve):
    server = serve(settings=closed(max_body_bytes=1000))
    with Wire(server.port) as wire:
        wire.send(
            head("POST", CHAT, "content-type: application/json", "transfer-encoding: chunked")
        )
        for _ in range(11):
            wire.send(b"64\r\n" + b" " * 100 + b"\r\n")
        answer = wire.answer()
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert server.chat().status == 200


def test_headers_are_limited_in_number_and_size(server):
    with Wire(server.port) as wire:
        lines = [f"x-{i}: 1" for i in range(MAX_HEADERS)]
        assert wire.send(head("GET", "/health", *lines)).answer().status == 431
    with Wire(server.port) as wire:
        assert wire.send(head("GET", "/health", f"x: {'y' * 70_000}")).answer().status == 431
    with Wire(server.port) as wire:
        assert wire.send(b"GET /" + b"y" * 70_000).answer().status == 431
    with Wire(server.port) as wire:
        lines = [f"x-{i}: 1" for i in range(MAX_HEADERS - 1)]
        assert wire.send(head("GET", "/health", *lines)).answer().status == 200


def test_a_head_or_body_that_never_ends_is_a_408(serve):
    server = serve(settings=closed(receive_timeout=0.3))
    with Wire(server.port) as silent, Wire(server.port) as begun, Wire(server.port) as body:
        begun.send(b"POST /v1/chat/completions HTTP/1.1\r\nx:")
        body.send(post(chat_body())[:-3])
        assert silent.answer().status == 408
        assert begun.answer().error["message"] == "the request did not arrive in time"
        late = body.answer()
        assert (late.status, late.error["code"]) == (408, "request_not_received")


def test_drips_do_not_extend_the_time(serve):
    server = serve(settings=closed(receive_timeout=0.5))
    with Wire(server.port) as one, Wire(server.port) as other:
        other.send(head("POST", CHAT, "content-type: application/json", "content-length: 900"))
        began = time.monotonic()
        while time.monotonic() < began + 1:
            one.send(b"x")
            other.send(b" ")
            time.sleep(0.05)
        assert one.answer().status == 408
        assert other.answer().status == 408


def test_a_kept_connection_may_ask_again_and_is_closed_when_it_does_not(serve):
    server = serve(settings=closed(receive_timeout=0.3))
    with Wire(server.port) as wire:
        for _ in range(3):
            assert wire.send(post(chat_body())).answer().status == 200
            time.sleep(0.4)
        wire.send(b"GET /hea")
        assert wire.answer().status == 408
        assert wire.ended()


def test_a_peer_that_reads_nothing_is_cut_off(serve, eventually):
    def endless(prompt, options):
        return Reply(deltas=(Delta(channel=Channel.CONTENT, text="x" * 4096),) * 2500)

    server = serve(endless, closed(stall_timeout=0.4), max_context=1 << 24)
    with Wire(server.port) as wire:
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send(post(chat_body(stream=True)))
        eventually(lambda: bool(server.engine.handles))
        eventually(lambda: server.engine.handles[0].cancelled.is_set())
        eventually(lambda: server.request("/health").json["running"] == 0)


def test_a_peer_that_reads_slowly_is_waited_for(serve):
    deltas = (Delta(channel=Channel.CONTENT, text="x" * 4096),) * 2000
    script = lambda prompt, options: Reply(deltas=deltas)  # noqa: E731
    server = serve(script, closed(stall_timeout=1.5), max_context=1 << 24)
    with Wire(server.port) as wire:
        wire.send(post(chat_body(stream=True)))
        time.sleep(0.5)
        got = wire.answer().body.decode()
    assert got.count("x" * 4096) == 2000
    assert got.endswith("data: [DONE]\n\n")


def test_the_request_timeout_is_the_engines_deadline(serve):
    server = serve(settings=closed(request_timeout=7.5))
    server.chat()
    assert 0 < server.engine.requests[-1][1].deadline <= 7.5  # less what it waited for a thread


@pytest.mark.parametrize(("path", "status"), [(CHAT, 429), ("/v1/messages", 529)])
def test_a_full_queue_says_when_to_come_back(server, path, status):
    def full(prompt, options):
        raise Overloaded("16 requests wait")

    server.engine.script = full
    body = json.dumps({"model": "scripted", "max_tokens": 5, "messages": HELLO}).encode()
    reply = server.request(path, body)
    assert (reply.status, reply.headers["retry-after"]) == (status, "1")


def test_a_request_keeps_its_identifier(server):
    given = server.request("/health", headers={"x-request-id": "mine-1"})
    assert given.headers["x-request-id"] == given.headers["request-id"] == "mine-1"
    for bad in ("a b", "x" * 129, "é"):
        made = server.request("/health", headers={"x-request-id": bad}).headers["x-request-id"]
        assert made.startswith("req_")


@pytest.fixture
def lines(caplog):
    """What was logged about chats, as the JSON log shows it."""
    caplog.set_level(logging.INFO, "ninfer.http")

    def shown():
        records = [r for r in caplog.records if r.name == "ninfer.http"]
        entries = [json.loads(JsonFormatter().format(record)) for record in records]
        return [entry for entry in entries if entry.get("path", CHAT) == CHAT]

    return shown


def test_the_json_log_has_one_object_for_a_request(server, lines, eventually):
    server.engine.script = lambda prompt, options: Reply.of("an answer")
    server.chat("a question", stream=True)
    eventually(lambda: len(lines()) == 1)
    [line] = lines()
    assert line["event"] == "request"
    assert (line["method"], line["path"], line["status"]) == ("POST", CHAT, 200)
    assert (line["prompt"], line["cached"], line["completion"]) == (16, 0, 9)
    assert (line["finish"], line["prefill_ms"], line["decode_ms"]) == ("stop_token", 500.0, 250.0)
    assert line["id"].startswith("req_")
    assert "question" not in str(line)


def test_bodies_are_logged_only_when_asked_for(serve, lines, eventually):
    server = serve(settings=closed(log_prompts=True))
    server.chat("a question\n")
    eventually(lambda: len(lines()) == 1)
    assert json.loads(lines()[0]["body"])["messages"][0]["content"] == "a question\n"


def test_an_unexpected_error_is_one_object_with_its_traceback(server, lines, eventually):
    def broken(prompt, options):
        raise ZeroDivisionError("nought")

    server.engine.script = broken
    server.chat()
    eventually(lambda: len(lines()) == 2)
    failed, request = lines()
    assert failed["level"] == "error"
    assert "ZeroDivisionError: nought" in failed["traceback"]
    assert request["status"] == 500
