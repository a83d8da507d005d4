"""Events on their way to the socket."""

from __future__ import annotations

import asyncio
import json

import pytest

from ninfer_gateway_http import sse


def written(events, pending, fails=False):
    """The writes that ``events`` become; ``pending`` says after each whether another one waits."""
    answers = iter(pending)

    async def source():
        for one in events:
            yield one
        if fails:
            raise ValueError("broken")

    async def run():
        writes = []
        try:
            async for write in sse.batched(source(), lambda: next(answers)):
                writes.append(write)  # noqa: PERF401 - a failure must not lose them
        except ValueError:
            writes.append("broken")
        return writes

    return asyncio.run(run())


def test_what_waits_goes_along_and_nothing_else_is_held_back():
    assert written([b"a", b"b", b"c", b"d"], [True, False, False, False]) == [b"ab", b"c", b"d"]


def test_the_last_events_are_written_before_the_end_and_before_a_failure():
    assert written([b"a", b"b"], [True, True]) == [b"ab"]
    assert written([b"a", b"b"], [True, True], fails=True) == [b"ab", "broken"]
    assert written([], [], fails=True) == ["broken"]


def test_a_write_has_a_bound():
    writes = written([b"x"] * 1000, [True] * 1000)
    assert b"".join(writes) == b"x" * 1000
    assert max(map(len, writes)) <= 64


def test_a_write_of_large_events_has_few_of_them():
    writes = written([b"x" * 40_000] * 5, [True] * 5)
    assert [len(one) for one in writes] == [80_000, 80_000, 40_000]


@pytest.mark.parametrize("text", ["a", "Größe 😀\n\n", "\u2028", "data: x"])
def test_an_event_is_one_line_of_json_in_utf_8(text):
    event = sse.event({"text": text})
    head, _, rest = event.partition(b"data: ")
    assert head == b""
    assert rest.endswith(b"\n\n")
    assert b"\n" not in rest[:-2]
    assert json.loads(rest.decode()) == {"text": text}


def test_what_says_nothing_holds_nothing_back():
    """A silent event that is waited for does not keep what came before it from the peer."""
    waiting = [True, False, False]

    async def events():
        yield b"role"
        yield b""
        raise AssertionError("was read on")

    async def first():
        chunks = sse.batched(events(), lambda: waiting.pop(0))
        return await anext(chunks)

    assert asyncio.run(first()) == b"role"


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, [b"!", b"!", b"end"]), (60.0, [b"end"])])
def test_a_long_silence_of_bytes_is_broken_while_events_come(seconds, expected):
    async def events():
        yield b""
        yield b""
        yield b"end"

    async def read():
        return [one async for one in sse.batched(events(), lambda: False, b"!", seconds)]

    assert asyncio.run(read()) == expected
