"""Events on their way to a consumer, which may be several threads."""

from __future__ import annotations

import threading

import pytest

from ninfer_core.contract.errors import EngineFailure, RequestError
from ninfer_core.contract.events import Channel, Delta, Failed
from ninfer_core.engine.response import Response

END = Failed(RequestError("the end"))


def delta(text):
    return Delta(channel=Channel.CONTENT, text=text)


def reader(response, taken):
    """Takes one event on a thread of its own."""
    thread = threading.Thread(target=lambda: taken.append(response.take(20)))
    thread.start()
    return thread


def test_events_come_in_order_and_the_end_once():
    settled = []
    response = Response(lambda: settled.append(1))
    response.put(delta("a"), delta("b"))
    response.put(delta("c"))
    response.end(END)
    assert [response.take().text for _ in range(3)] == ["a", "b", "c"]
    assert not settled
    assert response.take() is END
    assert settled == [1]
    assert response.take() is None
    assert response.take(0) is None


def test_nothing_came_in_time():
    response = Response()
    for timeout in (0, 1e-3):
        with pytest.raises(TimeoutError, match="no event within"):
            response.take(timeout)


def test_whoever_waits_hears_of_the_end():
    response, taken = Response(), []
    readers = [reader(response, taken) for _ in range(3)]
    response.put(delta("a"))
    response.end(END)
    for thread in readers:
        thread.join(20)
    assert taken.count(None) == 1
    assert taken.count(END) == 1
    assert taken.count(delta("a")) == 1


def test_letting_go_wakes_everybody_and_returns_the_place_at_the_end():
    settled, taken = [], []
    response = Response(lambda: settled.append(1))
    readers = [reader(response, taken) for _ in range(3)]
    response.release()
    response.release()
    for thread in readers:
        thread.join(20)
    assert taken == [None] * 3
    response.put(delta("unseen"))
    assert response.take() is None
    assert not settled
    response.end(END)
    assert settled == [1]
    assert response.take() is None


def test_what_was_not_read_is_dropped_with_the_consumer():
    response = Response()
    response.put(delta("a"), delta("b"))
    response.release()
    assert response.take() is None


@pytest.mark.parametrize("late", [lambda r: r.put(delta("x")), lambda r: r.end(END)])
def test_nothing_comes_after_the_end(late):
    response = Response()
    response.end(END)
    with pytest.raises(EngineFailure):
        late(response)


def test_a_subscriber_is_called_for_what_is_there_and_what_comes():
    response, calls = Response(), []
    response.subscribe(lambda: calls.append("first"))
    assert calls == []
    response.put(delta("a"), delta("b"))
    assert calls == ["first"]
    response.subscribe(lambda: calls.append("second"))
    response.end(END)
    assert calls == ["first", "second", "second"]
