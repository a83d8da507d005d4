"""What the server keeps of responses: conversations, look-ups, deletions, bounds."""

from __future__ import annotations

import json

import openai
import pytest

from ninfer_core.contract.events import FinishReason
from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http.responses.store import ResponseStore, Turn, as_json
from ninfer_gateway_http.settings import ServerSettings

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


def always(reply):
    return lambda prompt, options: reply


def answer(*args, **kwargs):
    return always(Reply.of(*args, **kwargs))


def create(server, text="hi", **fields):
    return server.client().responses.create(model="scripted", input=text, **fields)


def prompts(server):
    return [prompt for prompt, _ in server.engine.requests]


def store_of(server):
    return server.server.config.app.state.responses.store


def test_a_conversation_goes_on_without_its_instructions(server):
    server.engine.script = answer("one", reasoning="hm")
    first = create(server, "1?", instructions="Count.", tools=[TOOL])
    second = create(server, "2?", previous_response_id=first.id)
    create(server, "3?", previous_response_id=second.id, instructions="Stop.")
    said = {"role": "assistant", "content": "one", "reasoning_content": "hm"}
    assert prompts(server)[1].messages == [
        {"role": "user", "content": "1?"},
        said,
        {"role": "user", "content": "2?"},
    ]
    assert prompts(server)[1].tools == ()
    assert [m["content"] for m in prompts(server)[2].messages] == [
        "Stop.",
        "1?",
        "one",
        "2?",
        "one",
        "3?",
    ]
    assert second.previous_response_id == first.id


def test_the_session_is_named_after_the_first_response(server):
    first = create(server)
    second = create(server, previous_response_id=first.id)
    third = create(server, previous_response_id=second.id)
    branch = create(server, previous_response_id=first.id, store=False)
    keys = [prompt.cache.session_key for prompt in prompts(server)]
    assert keys == [first.id, first.id, first.id, None]
    assert third.id not in keys
    assert len(branch.output_text) > 0


def test_what_is_not_stored_is_not_found(server):
    done = create(server, store=False)
    assert done.store is False
    assert prompts(server)[0].cache.session_key is None
    with pytest.raises(openai.NotFoundError, match=done.id):
        server.client().responses.retrieve(done.id)
    with pytest.raises(openai.NotFoundError) as missing:
        create(server, previous_response_id=done.id)
    assert missing.value.param == "previous_response_id"
    assert missing.value.code == "response_not_found"


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_round_trip(server, stream):
    server.engine.script = always(Reply.of("").call("weather", '{"city": "Köln"}'))
    client = server.client()
    if stream:
        with client.responses.stream(model="scripted", input="?", tools=[TOOL]) as events:
            first = events.get_final_response()
    else:
        first = create(server, "?", tools=[TOOL])
    [call] = first.output
    server.engine.script = answer("Rain.")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    done = create(server, [result], previous_response_id=first.id, tools=[TOOL])
    assert done.output_text == "Rain."
    asked, called, returned = prompts(server)[1].messages
    assert asked == {"role": "user", "content": "?"}
    [made] = called["tool_calls"]
    assert made["function"] == {"name": "weather", "arguments": '{"city": "Köln"}'}
    assert returned == {"role": "tool", "tool_call_id": made["id"], "content": "rain"}


def test_a_client_that_keeps_its_own_history(server):
    server.engine.script = always(Reply.of("Look.", reasoning="hm").call("weather", "{}"))
    client = server.client()
    items = [{"role": "user", "content": [{"type": "input_text", "text": "?"}]}]
    first = client.responses.create(model="scripted", input=items, tools=[TOOL], store=False)
    items += [item.to_dict() for item in first.output]
    items += [
        {
            "type": "function_call_output",
            "call_id": "call_0",
            "output": [{"type": "input_text", "text": "rain"}],
        }
    ]
    client.responses.create(model="scripted", input=items, tools=[TOOL], store=False)
    _, said, returned = prompts(server)[1].messages
    assert (said["content"], said["reasoning_content"]) == ("Look.", "hm")
    assert [call["id"] for call in said["tool_calls"]] == ["call_0"]
    assert returned["content"] == "rain"


def test_a_thought_survives_a_client_that_sends_only_its_packed_form(server):
    server.engine.script = answer("4", reasoning="2+2 … é")
    first = create(server, store=False, include=["reasoning.encrypted_content"])
    thought, message = (item.to_dict() for item in first.output)
    del thought["content"]
    turns = [{"role": "user", "content": "hi"}, thought, message, {"role": "user", "content": "?"}]
    create(server, turns)
    assert prompts(server)[1].messages[1]["reasoning_content"] == "2+2 … é"
    foreign = thought | {"encrypted_content": "gAAAAAB"}
    reply = server.request("/v1/responses", json.dumps({"input": [foreign, *turns[2:]]}).encode())
    assert "encrypted_content was not made here" in reply.headers["x-ninfer-warning"]
    assert "reasoning_content" not in prompts(server)[2].messages[0]


def test_two_messages_of_the_assistant_are_two_turns(server):
    turns = [{"role": "assistant", "content": c} for c in "ab"]
    create(
        server, [*turns, {"role": "developer", "content": "c"}, {"role": "user", "content": "d"}]
    )
    roles = [(m["role"], m["content"]) for m in prompts(server)[0].messages]
    assert roles == [("assistant", "a"), ("assistant", "b"), ("developer", "c"), ("user", "d")]


def test_a_call_that_was_cut_is_not_shown_to_the_model(server):
    cut = Reply.of("So.", finish=FinishReason.OUTPUT_LIMIT).call("weather", '{"city": "Kö')
    server.engine.script = always(cut)
    first = create(server, tools=[TOOL])
    assert first.output[1].status == "incomplete"
    server.engine.script = answer("ok")
    create(server, previous_response_id=first.id)
    assert prompts(server)[1].messages[1] == {"role": "assistant", "content": "So."}


def test_items_may_be_referred_to(server):
    server.engine.script = answer("one")
    first = create(server)
    reference = {"type": "item_reference", "id": first.output[0].id}
    create(server, [{"role": "user", "content": "hi"}, reference, {"role": "user", "content": "?"}])
    assert prompts(server)[1].messages[1] == {"role": "assistant", "content": "one"}


def test_a_response_is_retrieved_as_it_was_sent_and_deleted(server):
    client = server.client()
    done = create(server, metadata={"a": "b"})
    assert client.responses.retrieve(done.id).to_dict() == done.to_dict()
    with client.responses.stream(model="scripted", input="hi") as stream:
        streamed = stream.get_final_response()
    assert client.responses.retrieve(streamed.id).output_text == "hi"
    client.responses.delete(done.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match=done.id):
            call(done.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list(done.id)


def test_a_deleted_response_stays_history_to_those_that_followed(server):
    server.engine.script = answer("one")
    first = create(server, "1?")
    second = create(server, "2?", previous_response_id=first.id)
    server.client().responses.delete(first.id)
    create(server, "3?", previous_response_id=second.id)
    assert [m["content"] for m in prompts(server)[2].messages] == ["1?", "one", "2?", "one", "3?"]


def test_input_items_in_pages(server):
    server.engine.script = answer("one")
    client = server.client()
    first = create(server, "1?", instructions="No item.")
    second = create(
        server,
        [{"role": "user", "content": c} for c in ("2?", "3?")],
        previous_response_id=first.id,
    )

    def texts(**query):
        return [i.content[0].text for i in client.responses.input_items.list(second.id, **query)]

    assert texts(order="asc") == ["1?", "one", "2?", "3?"]
    assert texts() == ["3?", "2?", "one", "1?"]
    assert texts(limit=1) == ["3?", "2?", "one", "1?"]
    page = client.responses.input_items.list(second.id, order="asc", limit=2)
    assert (page.has_more, page.last_id) == (True, page.data[1].id)
    assert page.data[1].id == first.output[0].id
    rest = client.responses.input_items.list(second.id, order="asc", after=page.last_id)
    assert ([i.content[0].text for i in rest.data], rest.has_more) == (["2?", "3?"], False)
    for query, param in (
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "msg_x"}, "after"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.input_items.list(second.id, **query)
        assert refused.value.param == param


def test_the_latest_responses_stay_within_their_number(serve):
    server = serve(settings=ServerSettings(drain=0.0, max_responses=2))
    names = [create(server, str(i)).id for i in range(3)]
    client = server.client()
    with pytest.raises(openai.NotFoundError, match="the latest 2 stay"):
        client.responses.retrieve(names[0])
    client.responses.retrieve(names[1])
    names.append(create(server, "4").id)
    assert client.responses.retrieve(names[1]).id == names[1]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(names[2])
    assert len(store_of(server)) == 2


def test_the_store_stays_within_its_bytes(serve):
    server = serve(settings=ServerSettings(drain=0.0, max_response_bytes=20_000))
    server.engine.script = answer("ok")
    previous = None
    for turn in range(24):
        follows = {"previous_response_id": previous} if turn % 6 else {}
        previous = create(server, "x" * 500, **follows).id
        assert server.client().responses.retrieve(previous).id == previous
        store = store_of(server)
        assert store.bytes <= 20_000
    assert 4 < len(store) < 24
    store.max_bytes = 1000
    last = create(server, "x" * 500)
    assert (len(store), store.bytes) == (0, 0)
    with pytest.raises(openai.NotFoundError):
        server.client().responses.retrieve(last.id)


def response(name):
    return {"id": name, "status": "completed", "background": False, "output": []}


def item(name):
    return {
        "type": "message",
        "id": name,
        "role": "user",
        "content": "x" * 50,
        "status": "completed",
    }


def test_the_store_counts_shared_turns_once_and_forgets_all():
    store = ResponseStore(10, 1 << 20)
    root = Turn.of("r", None, [item("a")], [item("b")])
    left = Turn.of("r", root, [item("c")], [])
    right = Turn.of("r", root, [item("d")], [])
    for name, turn in (("r", root), ("left", left), ("right", right)):
        store.put(response(name), turn)
    texts = [as_json(response(n)) for n in ("r", "left", "right")]
    expected = sum(map(len, texts)) + sum(len(t.data) for t in (root, left, right))
    assert store.bytes == expected
    store.put(response("right"), right)
    assert store.bytes == expected
    store.delete("r")
    assert store.bytes == expected - len(texts[0])
    assert [i["id"] for i in left.history()] == ["a", "b", "c"]
    assert store.item("a") == item("a")
    store.delete("left")
    assert store.item("c") is None
    assert store.item("a") == item("a")
    store.delete("right")
    assert (store.bytes, len(store), store.item("a")) == (0, 0, None)
    assert not store.delete("right")
