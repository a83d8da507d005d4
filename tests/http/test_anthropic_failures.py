"""What goes wrong with a message, as the exceptions of Anthropic's client."""

from __future__ import annotations

import json
import threading

import anthropic
import pytest

from ninfer_core.contract.errors import (
    ConstraintDeadEnd,
    DeadlineExceeded,
    EngineFailure,
    NonFiniteOutput,
    Overloaded,
    QueueTimeout,
    Unavailable,
)
from ninfer_core.contract.events import FinishReason
from ninfer_core.testing.scripted_engine import failing
from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http.settings import ServerSettings

HELLO = {"role": "user", "content": "hi"}
BASE = {"model": "m", "max_tokens": 2000, "messages": [HELLO]}


def client_of(server, key="none"):
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=20)


def post(server, path="/v1/messages", headers=None, **fields):
    return server.request(path, json.dumps(BASE | fields).encode(), headers)


FAILURES = [
    (ConstraintDeadEnd("no"), anthropic.BadRequestError, 400, "invalid_request_error"),
    (Overloaded("no"), anthropic.OverloadedError, 529, "overloaded_error"),
    (QueueTimeout("no"), anthropic.GatewayTimeoutError, 504, "timeout_error"),
    (DeadlineExceeded("no"), anthropic.GatewayTimeoutError, 504, "timeout_error"),
    (Unavailable("no"), anthropic.ServiceUnavailableError, 503, "api_error"),
    (NonFiniteOutput("no"), anthropic.InternalServerError, 500, "api_error"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "kind", "status", "name"), FAILURES, ids=[e.code for e, *_ in FAILURES]
)
def test_a_failure_before_the_start_has_its_status(server, error, kind, status, name, stream):
    server.engine.script = lambda prompt, options: Reply.of("", error=error, starts=False)
    with pytest.raises(kind) as caught:
        client_of(server).messages.create(**BASE, stream=stream)
    failed = caught.value
    assert (failed.status_code, failed.body["error"]["type"]) == (status, name)
    assert failed.body["error"]["details"]["error_code"] == error.code
    assert failed.request_id == failed.body["request_id"]
    assert failed.request_id.startswith("req_")
    assert ("retry-after" in failed.response.headers) == (status in (503, 529))


def test_overload_is_an_exception_of_its_own(serve):
    server = serve(lambda prompt, options: Reply.of("abc", interval=30), capacity=1)
    client = client_of(server)
    with client.messages.stream(**BASE) as stream:
        next(iter(stream))
        with pytest.raises(anthropic.OverloadedError):
            client.messages.create(**BASE)


def test_a_failure_on_the_way_is_the_last_event(server):
    server.engine.script = failing(NonFiniteOutput("NaN in row 3"), after="so far")
    reply = post(server, stream=True)
    assert "message_stop" not in reply.text
    name, data = reply.text.strip().split("\n\n")[-1].split("\n")
    assert name == "event: error"
    body = json.loads(data.removeprefix("data: "))
    assert (body["type"], body["error"]["type"]) == ("error", "api_error")
    assert body["request_id"] == reply.headers["request-id"]
    with pytest.raises(anthropic.APIStatusError, match="NaN in row 3"):
        list(client_of(server).messages.create(**BASE, stream=True))


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_request_is_no_answer(server, stream):
    server.engine.script = lambda prompt, options: Reply.of(
        "", finish=FinishReason.CANCELLED, starts=False
    )
    reply = post(server, stream=stream)
    assert (reply.status, reply.error["details"]["error_code"]) == (503, "cancelled")


def test_a_key_is_asked_for_in_the_same_shape(serve):
    server = serve(settings=ServerSettings(drain=0.0, api_keys=("one",)))
    with pytest.raises(anthropic.AuthenticationError) as caught:
        client_of(server, "two").messages.create(**BASE)
    assert caught.value.body["error"]["type"] == "authentication_error"
    assert client_of(server, "one").messages.create(**BASE).content[0].text == "hi"
    bearer = anthropic.Anthropic(base_url=server.url, auth_token="one", max_retries=0, timeout=20)
    assert bearer.messages.create(**BASE).content[0].text == "hi"


def test_a_prompt_over_the_context_gives_both_numbers(serve):
    server = serve(max_context=64)
    with pytest.raises(anthropic.BadRequestError) as caught:
        client_of(server).messages.create(**BASE | {"messages": [{**HELLO, "content": "x" * 94}]})
    error = caught.value.body["error"]
    assert error["message"] == "prompt is too long: 100 tokens > 64 maximum"
    assert (error["details"]["prompt_tokens"], error["details"]["max_context"]) == (100, 64)


def test_a_limit_beyond_the_context_is_cut_and_said(serve):
    reply = post(serve(max_context=64), max_tokens=9000)
    assert reply.status == 200
    assert "max_tokens was clamped from 9000 to 56" in reply.headers["x-ninfer-warning"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"],
    ids=["empty", "cut", "list", "bytes", "deep"],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_a_body_that_is_no_request_is_a_400(server, body, path):
    reply = server.request(path, body)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert reply.json["request_id"] == reply.headers["request-id"]


def test_other_paths_methods_and_sizes(serve):
    server = serve(settings=ServerSettings(drain=0.0, max_body_bytes=1000))
    with pytest.raises(anthropic.NotFoundError):
        client_of(server).messages.batches.retrieve("b")
    reply = server.request("/v1/messages")
    assert (reply.status, reply.error["type"]) == (405, "invalid_request_error")
    with pytest.raises(anthropic.APIStatusError) as caught:
        client_of(server).messages.create(**BASE | {"messages": [{**HELLO, "content": "x" * 2000}]})
    assert caught.value.status_code == 413
    assert caught.value.body["error"]["type"] == "request_too_large"


def test_an_unexpected_error_shows_no_detail(server):
    def broken(prompt, options):
        raise ZeroDivisionError("secret 17")

    server.engine.script = broken
    with pytest.raises(anthropic.InternalServerError) as caught:
        client_of(server).messages.create(**BASE)
    assert caught.value.body["error"]["message"] == "internal error"
    assert "secret" not in str(caught.value)


def error_event(reply):
    name, data = reply.text.strip().split("\n\n")[-1].split("\n")
    assert name == "event: error"
    return json.loads(data.removeprefix("data: "))["error"]


def test_a_stream_that_the_stop_outlives_ends_with_an_error(serve, eventually):
    server = serve(lambda prompt, options: Reply.of("abc", interval=30), ServerSettings(drain=0.1))
    replies = []
    thread = threading.Thread(target=lambda: replies.append(post(server, stream=True)))
    thread.start()
    eventually(lambda: bool(server.engine.handles))
    server.stop()
    thread.join(20)
    error = error_event(replies[0])
    assert (error["type"], error["details"]["error_code"]) == ("api_error", "service_unavailable")


def test_an_engine_that_dies_in_a_stream_is_said(serve, monkeypatch):
    server = serve(lambda prompt, options: Reply.of("abc"))
    submit = server.engine.submit

    def submit_dying(prompt, options=None):
        handle = submit(prompt, options)
        take = handle.next_event

        def dying(timeout=None):
            event = take(timeout)
            if getattr(event, "text", "") == "b":
                raise EngineFailure("half a commit")
            return event

        handle.next_event = dying
        return handle

    monkeypatch.setattr(server.engine, "submit", submit_dying)
    error = error_event(post(server, stream=True))
    assert (error["type"], error["details"]["error_code"]) == ("api_error", "engine_failure")
