"""Responses in the background, and responses that are cut short by failures and ends."""

from __future__ import annotations

import json
import threading

import openai
import pytest

from ninfer_core.contract.errors import NonFiniteOutput, Overloaded
from ninfer_core.testing.scripted_engine import failing
from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http.settings import ServerSettings


def create(server, **fields):
    return server.client().responses.create(**{"model": "scripted", "input": "hi"} | fields)


def events_of(reply):
    lines = (line for line in reply.text.splitlines() if line.startswith("data: "))
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def slow(prompt, options):
    return Reply.of("x" * 600, interval=0.05)


class Held(tuple):
    """Deltas that come once they may."""

    may_come = threading.Event()

    def __iter__(self):
        self.may_come.wait(20)
        return super().__iter__()


def test_a_background_response_is_made_while_nobody_waits(server, eventually):
    held = Held(Reply.of("done").deltas)
    server.engine.script = lambda prompt, options: Reply(deltas=held)
    client = server.client()
    queued = create(server, background=True)
    assert (queued.status, queued.output, queued.background) == ("queued", [], True)
    with pytest.raises(openai.BadRequestError, match="still in progress"):
        create(server, previous_response_id=queued.id)
    held.may_come.set()
    eventually(lambda: client.responses.retrieve(queued.id).status == "completed")
    done = client.responses.retrieve(queued.id)
    assert (done.output_text, done.usage.output_tokens) == ("done", 4)
    assert create(server, previous_response_id=queued.id).status == "completed"


def test_a_cancelled_background_response_keeps_what_it_had(server, eventually):
    server.engine.script = slow
    client = server.client()
    queued = create(server, background=True)
    eventually(lambda: client.responses.retrieve(queued.id).output_text.startswith("xx"))
    seen = client.responses.retrieve(queued.id)
    assert (seen.status, seen.output[0].status) == ("in_progress", "in_progress")
    cancelled = client.responses.cancel(queued.id)
    assert cancelled.status == "cancelled"
    assert cancelled.output_text.startswith(seen.output_text)
    assert cancelled.output[0].status == "incomplete"
    assert server.engine.handles[-1].cancelled.is_set()
    assert client.responses.cancel(queued.id).status == "cancelled"
    assert client.responses.retrieve(queued.id).to_dict() == cancelled.to_dict()


def test_deleting_a_background_response_stops_it(server, eventually):
    server.engine.script = slow
    client = server.client()
    queued = create(server, background=True)
    client.responses.delete(queued.id)
    eventually(lambda: server.engine.stats().running == 0)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(queued.id)


def test_a_failed_background_response_says_why(server, eventually):
    server.engine.script = failing(NonFiniteOutput("NaN in row 3"), after="so far")
    client = server.client()
    queued = create(server, background=True)
    eventually(lambda: client.responses.retrieve(queued.id).status == "failed")
    failed = client.responses.retrieve(queued.id)
    assert (failed.error.code, failed.error.message) == ("server_error", "NaN in row 3")
    assert failed.output_text == "so far"


def test_a_background_response_needs_room(serve):
    server = serve(slow, capacity=1)
    create(server, background=True)
    with pytest.raises(openai.RateLimitError):
        create(server, background=True)


def test_a_background_response_ends_with_the_server(serve, eventually):
    server = serve(slow, ServerSettings(drain=0.2))
    create(server, background=True)
    server.stop()
    assert server.engine.stats().running == 0


def test_only_background_responses_can_be_cancelled(server):
    done = create(server)
    with pytest.raises(openai.BadRequestError, match="no background response"):
        server.client().responses.cancel(done.id)


def test_a_failure_on_the_way_is_an_error_and_one_end(server):
    server.engine.script = failing(NonFiniteOutput("NaN in row 3"), after="so far")
    client = server.client()
    events = list(create(server, stream=True))
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert (events[-2].code, events[-2].message) == ("nonfinite_output", "NaN in row 3")
    failed = events[-1].response
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    assert failed.output[0].content[0].text == "so far"
    assert failed.output[0].status == "incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert client.responses.retrieve(failed.id).status == "failed"
    with pytest.raises(openai.InternalServerError):
        create(server)


def test_a_refusal_before_the_start_has_its_status(server):
    server.engine.script = lambda p, o: Reply.of("", error=Overloaded("no"), starts=False)
    for fields in ({}, {"stream": True}):
        with pytest.raises(openai.RateLimitError):
            create(server, **fields)


def test_a_peer_that_leaves_cancels_its_response(serve, eventually):
    server = serve(slow)
    stream = create(server, stream=True)
    for event in stream:
        if event.type == "response.output_text.delta":
            break
    stream.close()
    eventually(lambda: server.engine.stats().running == 0)
    assert server.engine.handles[0].cancelled.is_set()


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_stops_ends_its_responses_with_an_error(serve, eventually, stream):
    server = serve(slow, ServerSettings(drain=0.2))
    replies = []
    body = json.dumps({"input": "hi", "stream": stream}).encode()
    asking = threading.Thread(target=lambda: replies.append(server.request("/v1/responses", body)))
    asking.start()
    eventually(lambda: server.engine.stats().running == 1)
    server.stop()
    asking.join(20)
    [reply] = replies
    if stream:
        *_, error, failed = events_of(reply)
        assert (error["type"], error["code"]) == ("error", "service_unavailable")
        assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    else:
        assert (reply.status, reply.error["code"]) == (503, "service_unavailable")
