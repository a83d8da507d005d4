"""Several choices of one request beside other requests that take the room."""

from __future__ import annotations

import json
import threading
import urllib.request

import pytest

from ninfer_core.contract.errors import Overloaded
from ninfer_core.testing.scripted_reply import Reply


class _Refusing:
    """Answers prompts as long as they are, but those of ``length`` characters only once it ``has``
    room for them."""

    def __init__(self, length: int) -> None:
        self.has = threading.Event()
        self.refused = 0
        self._length = length

    def __call__(self, prompt, options):
        long = len(prompt.text) == self._length
        if long and not self.has.is_set():
            self.refused += 1
            raise Overloaded("no room")
        return Reply.of("long" if long else "s", interval=0 if long else 0.2)


def _stream(server, **fields):
    body = json.dumps({"stream": True, **fields}).encode()
    headers = {"content-type": "application/json"}
    url = f"{server.url}/v1/completions"
    return urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=20)


@pytest.mark.usefixtures("one_by_one")
def test_nothing_waits_for_the_choice_with_the_longest_prompt(serve):
    """Its limit is clamped, which is said although it finds no room until another was read."""
    script = _Refusing(60)
    server = serve(script, max_context=64)
    with _stream(server, prompt=["ab", "x" * 60, "cd"], max_tokens=30) as answer:
        said = "max_tokens 30 was clamped to 4, what the context has left"
        assert answer.headers["x-ninfer-warning"] == said
        while b'"text":"s"' not in answer.readline():
            pass
        script.has.set()
        rest = answer.read().decode()
    assert '"text":"l"' in rest
    assert "error" not in rest


@pytest.mark.parametrize("stream", [False, True])
def test_the_last_choice_is_tried_again_when_the_others_were_generated(serve, eventually, stream):
    script = _Refusing(10)
    server = serve(script, max_context=64)
    replies = []
    body = {"prompt": ["ab", "x" * 10], "stream": stream}
    ask = lambda: replies.append(server.request("/v1/completions", json.dumps(body).encode()))  # noqa: E731
    asking = threading.Thread(target=ask)
    asking.start()
    eventually(lambda: script.refused >= 3)  # beside the other, after it, and once more
    script.has.set()
    asking.join(20)
    [reply] = replies
    assert (reply.status, "error" in reply.text) == (200, False)
    texts = ["", ""]
    for one in reply.events[:-1] if stream else [reply.json]:
        for choice in one["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["s", "long"]


def test_a_choice_that_never_finds_room_ends_the_request_in_the_end(serve, monkeypatch):
    monkeypatch.setattr("ninfer_gateway_http.choices.PATIENCE", 0.3)
    script = _Refusing(10)
    body = json.dumps({"prompt": ["ab", "x" * 10]}).encode()
    assert serve(script).request("/v1/completions", body).status == 429
    assert script.refused >= 3
