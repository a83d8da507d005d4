"""Peers that leave, keys, silence, and the server's own end."""

from __future__ import annotations

import json
import socket
import threading

import openai
import pytest

from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http.server import CannotListen, listen
from ninfer_gateway_http.settings import ServerSettings

HELLO = [{"role": "user", "content": "hi"}]


def slow(prompt, options):
    """Sixty seconds of answer."""
    return Reply.of("x" * 600, interval=0.1)


def post(server, **fields):
    """Send a chat request over a bare socket and leave it open."""
    body = json.dumps({"messages": HELLO, **fields}).encode()
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    sock.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        + f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return sock


def running(server):
    return server.engine.stats().running


@pytest.mark.parametrize("stream", [False, True])
def test_a_peer_that_leaves_cancels_its_request(serve, eventually, stream):
    server = serve(slow)
    sock = post(server, stream=stream)
    eventually(lambda: running(server) == 1)
    sock.close()
    eventually(lambda: running(server) == 0)
    assert server.engine.handles[0].cancelled.is_set()


def test_a_peer_that_leaves_before_the_first_token_cancels_its_request(serve, eventually):
    server = serve(lambda prompt, options: Reply.of("x", interval=60))
    sock = post(server, stream=True)
    eventually(lambda: running(server) == 1)
    sock.close()
    eventually(lambda: running(server) == 0)


def test_closing_the_clients_stream_cancels(serve, eventually):
    server = serve(slow)
    stream = server.client().chat.completions.create(model="scripted", messages=HELLO, stream=True)
    for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    stream.close()
    eventually(lambda: running(server) == 0)


def test_others_go_on_when_one_leaves(serve, eventually):
    def script(prompt, options):
        return slow(prompt, options) if options.max_new_tokens is None else Reply.of("done")

    server = serve(script)
    sock = post(server, stream=True)
    eventually(lambda: running(server) == 1)
    sock.close()
    assert server.chat(max_tokens=10).json["choices"][0]["message"]["content"] == "done"


def test_silence_is_bridged_with_comments(serve):
    server = serve(
        lambda prompt, options: Reply.of("ab", interval=0.3),
        ServerSettings(drain=0.0, keep_alive=0.1),
    )
    reply = server.chat(stream=True)
    assert ": keep-alive\n\n" in reply.text
    pieces = [e["choices"][0]["delta"].get("content", "") for e in reply.events[:-1]]
    assert "".join(pieces) == "ab"


def test_a_key_covers_everything_but_health(serve):
    server = serve(settings=ServerSettings(drain=0.0, api_keys=("one", "two")))
    assert server.request("/health").status == 200
    for path in ("/v1/models", "/openapi.json", "/v1/chat/completions", "/nothing"):
        reply = server.request(path)
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
    for headers in ({"authorization": "Bearer two"}, {"x-api-key": "one"}):
        assert server.request("/v1/models", headers=headers).status == 200
    assert server.request("/v1/models", headers={"authorization": "Bearer on"}).status == 401
    with pytest.raises(openai.AuthenticationError):
        server.client("three").chat.completions.create(model="scripted", messages=HELLO)
    done = server.client("one").chat.completions.create(model="scripted", messages=HELLO)
    assert done.choices[0].message.content == "hi"


def test_running_requests_finish_and_new_ones_are_refused_while_stopping(serve, eventually):
    server = serve(
        lambda prompt, options: Reply.of("abcdef", interval=0.2), ServerSettings(drain=20.0)
    )
    replies = []
    thread = threading.Thread(target=lambda: replies.append(server.chat()))
    thread.start()
    eventually(lambda: running(server) == 1)
    server.server.should_exit = True
    eventually(lambda: not server.engine.availability().ready)
    refused = server.chat()
    assert (refused.status, refused.error["code"]) == (503, "service_unavailable")
    thread.join(20)
    assert replies[0].json["choices"][0]["message"]["content"] == "abcdef"
    server.join()


def test_streams_that_do_not_finish_in_time_end_with_an_error(serve, eventually):
    server = serve(slow, ServerSettings(drain=0.3))
    replies = []
    thread = threading.Thread(target=lambda: replies.append(server.chat(stream=True)))
    thread.start()
    eventually(lambda: running(server) == 1)
    server.stop()
    thread.join(20)
    assert replies[0].events[-2]["error"]["code"] == "service_unavailable"
    assert replies[0].events[-1] == "[DONE]"
    assert running(server) == 0


def test_a_taken_port_is_said():
    with listen("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(CannotListen, match="--port"):
            listen("127.0.0.1", first.getsockname()[1])
