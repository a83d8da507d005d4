"""What goes wrong on the way, before the status is sent and after."""

from __future__ import annotations

import logging

import openai
import pytest

from ninfer_core.contract.errors import (
    ConstraintDeadEnd,
    DeadlineExceeded,
    EngineFailure,
    Infeasible,
    InvalidPrompt,
    NonFiniteOutput,
    Overloaded,
    QueueTimeout,
    Unavailable,
)
from ninfer_core.contract.events import FinishReason
from ninfer_core.testing.scripted_engine import failing
from ninfer_core.testing.scripted_reply import Reply

STATUSES = [
    (InvalidPrompt("no", param="messages"), 400),
    (ConstraintDeadEnd("no"), 400),
    (Infeasible("no"), 400),
    (Overloaded("no"), 429),
    (NonFiniteOutput("no"), 500),
    (QueueTimeout("no"), 503),
    (Unavailable("no"), 503),
    (DeadlineExceeded("no"), 504),
]
HELLO = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "status"), STATUSES, ids=lambda v: getattr(v, "code", v))
def test_a_failure_before_the_start_has_its_status(server, error, status, stream):
    server.engine.script = lambda prompt, options: Reply.of("", error=error, starts=False)
    reply = server.chat(stream=stream)
    assert (reply.status, reply.error["code"]) == (status, error.code)
    assert ("retry-after" in reply.headers) == (status in (429, 503))


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_is_cancelled_before_its_start_is_no_answer(server, stream):
    server.engine.script = lambda prompt, options: Reply.of(
        "", finish=FinishReason.CANCELLED, starts=False
    )
    reply = server.chat(stream=stream)
    assert (reply.status, reply.error["code"]) == (503, "cancelled")


def test_a_failure_on_the_way_is_an_event_and_then_the_end(server):
    server.engine.script = failing(NonFiniteOutput("NaN in row 3"), after="so far")
    events = server.chat(stream=True).events
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events if "choices" in e)
    assert text == "so far"
    assert events[-2]["error"]["code"] == "nonfinite_output"
    assert events[-1] == "[DONE]"
    with pytest.raises(openai.APIError, match="NaN in row 3"):
        list(server.client().chat.completions.create(model="scripted", messages=HELLO, stream=True))
    assert server.chat().status == 500


def test_a_full_engine_is_a_429(serve):
    server = serve(lambda prompt, options: Reply.of("abc", interval=30), capacity=1)
    stream = server.client().chat.completions.create(model="scripted", messages=HELLO, stream=True)
    next(iter(stream))
    with pytest.raises(openai.RateLimitError):
        server.client().chat.completions.create(model="scripted", messages=HELLO)
    stream.close()


def test_an_unexpected_error_shows_no_detail(server, caplog, eventually):
    def broken(prompt, options):
        raise ZeroDivisionError("secret 17")

    server.engine.script = broken
    reply = server.chat()
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
    eventually(lambda: reply.headers["x-request-id"] in caplog.text)
    assert "secret" not in reply.text
    eventually(lambda: "ZeroDivisionError" in caplog.text)


def test_a_dead_engine_is_seen_by_health(serve):
    server = serve()
    assert (server.request("/health").status, server.request("/health").json["status"]) == (
        200,
        "ok",
    )
    server.engine.fail("a page was released twice")
    health = server.request("/health")
    assert (health.status, health.json["status"]) == (503, "failed")
    assert health.json["reason"] == "a page was released twice"
    assert server.chat().status == 503


def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error(serve, monkeypatch):
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
    events = server.chat(stream=True).events
    assert events[-2]["error"]["code"] == "engine_failure"
    assert events[-1] == "[DONE]"


def test_the_log_has_facts_and_no_prompt(server, caplog, eventually):
    caplog.set_level(logging.INFO, "ninfer.http")
    server.engine.script = lambda prompt, options: Reply.of("a private answer")
    server.chat("a private question")
    server.chat("a private question", stream=True)

    def lines():
        return [r.getMessage() for r in caplog.records if r.name == "ninfer.http"]

    eventually(lambda: len(lines()) == 2)
    assert all("POST '/v1/chat/completions' 200" in line for line in lines())
    assert all("completion=16 finish=stop_token" in line for line in lines())
    assert "private" not in caplog.text
