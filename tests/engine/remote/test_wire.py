"""Messages, events and errors come out as they went in."""

from __future__ import annotations

import socket
import threading
from types import MappingProxyType

import numpy as np
import pytest

from ninfer_core.contract import errors
from ninfer_core.contract.errors import (
    ContextLengthExceeded,
    EngineFailure,
    InvalidSchema,
    RequestError,
    Unavailable,
)
from ninfer_core.contract.events import (
    Channel,
    Delta,
    Failed,
    Finished,
    FinishReason,
    GenerationResult,
    GenerationStart,
    PromptProgress,
    ReuseReason,
    Timings,
    ToolCall,
    ToolDelta,
    Usage,
)
from ninfer_core.contract.sampling import TokenLogprobs, TopLogprob
from ninfer_core.engine.remote import frames
from ninfer_core.engine.remote.channel import Channel as Pipe
from ninfer_core.engine.remote.outbox import pack_round
from ninfer_core.engine.remote.wire_errors import pack_error, unpack_error
from ninfer_core.engine.remote.wire_events import unpack_event
from ninfer_core.errors import NinferError

LOGPROBS = (
    TokenLogprobs(5, -0.5, (TopLogprob(5, -0.5), TopLogprob(6, -1.25))),
    TokenLogprobs(0, float("-inf")),
)
RESULT = GenerationResult(
    text="héllo",
    reasoning="why",
    tool_calls=(ToolCall("call_0", "look", '{"a": 1}'),),
    token_ids=(5, 0, 7),
    finish_reason=FinishReason.STOP_STRING,
    usage=Usage(prompt_tokens=3, completion_tokens=3, cached_tokens=1, reasoning_tokens=1),
    timings=Timings(queue=0.5, rounds=3, drafted=(1, 2), reuse_reason=ReuseReason.EVICTED),
    logprobs=LOGPROBS,
    prompt_logprobs=(None, *LOGPROBS),
    stop_match="\n",
    notes=("clamped",),
    warnings=("odd",),
)
EVENTS = (
    GenerationStart(3, 1, ReuseReason.SHARED_CHECKPOINT, ("a note",)),
    PromptProgress(done=2, total=3, cached=1),
    Delta(channel=Channel.REASONING, text="why"),
    Delta(channel=Channel.CONTENT, text="", token_ids=(5, 0)),
    Delta(channel=Channel.CONTENT, text="é", token_ids=(5, 0), logprobs=LOGPROBS),
    Delta(channel=Channel.TOOL_CALL, tool=ToolDelta(index=0, id="call_0", name="look")),
    Delta(channel=Channel.TOOL_CALL, tool=ToolDelta(index=1, arguments='{"a"')),
)


def through(*batches):
    """The rounds that come out of the far end of a connection when ``batches`` are posted."""
    near, far = socket.socketpair()
    received, over = [], threading.Event()
    sender = Pipe(near, lambda message: None, lambda: None, pack_round)
    receiver = Pipe(far, received.append, over.set)
    for batch in batches:
        sender.post(batch)
    sender.start()
    receiver.start()
    sender.finish(5)
    assert over.wait(5)
    return received


def test_what_waits_leaves_as_one_message_in_its_order():
    rounds = through([(7, EVENTS[:3]), (8, EVENTS[3:])], [(7, Finished(RESULT), None)])
    assert len(rounds) == 1
    told = [(entry[0], unpack_event(entry)) for entry in rounds[0]]
    assert told == [
        *((7, (event, None)) for event in EVENTS[:3]),
        *((8, (event, None)) for event in EVENTS[3:]),
        (7, (Finished(RESULT), None)),
    ]


def test_a_failure_takes_its_parts_along():
    cause = EngineFailure("broke", hint="restart")
    [[entry]] = through([(3, Failed(ContextLengthExceeded(9, 8), RESULT), cause)])
    event, failure = unpack_event(entry)
    assert isinstance(event.error, ContextLengthExceeded)
    assert (event.error.prompt_tokens, event.error.max_context) == (9, 8)
    assert event.partial == RESULT
    assert (type(failure), str(failure)) == (EngineFailure, "broke (restart)")


def public_errors():
    yield ContextLengthExceeded(9, 8)
    yield InvalidSchema("no", pointer="/a", param="p")
    yield EngineFailure("broke", hint="restart")
    for kind in vars(errors).values():
        request = isinstance(kind, type) and issubclass(kind, RequestError)
        if request and kind not in (ContextLengthExceeded, InvalidSchema):
            yield kind("said", param="field", hint="mend")


@pytest.mark.parametrize("error", list(public_errors()), ids=lambda error: type(error).__name__)
def test_every_public_error_keeps_type_and_fields(error):
    again = unpack_error(pack_error(error))
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert (str(again), again.args, again.exit_code) == (str(error), error.args, error.exit_code)
    assert getattr(again, "code", None) == getattr(error, "code", None)


def test_an_error_of_an_unknown_type_comes_as_what_it_is_based_on():
    kind = type("Strange", (Unavailable,), {"__module__": "ninfer_nowhere"})
    error = kind("gone")
    error.socket = threading.Lock()
    again = unpack_error(pack_error(error))
    assert (type(again), str(again)) == (Unavailable, "gone")
    assert "lock" in again.socket
    plain = unpack_error(pack_error(OSError(5, "broken")))
    assert (type(plain), plain.args, plain.errno) == (OSError, (5, "broken"), 5)
    assert not isinstance(plain, NinferError)
    assert "OSError" in plain.__notes__[0]


@pytest.mark.parametrize("size", [10, frames.OUT_OF_BAND // 4, 1 << 20])
def test_arrays_arrive_whole(size):
    near, far = socket.socketpair()
    received, over = [], threading.Event()
    sender, receiver = (
        Pipe(near, lambda message: None, lambda: None),
        Pipe(far, received.append, over.set),
    )
    sender.start()
    receiver.start()
    array = np.arange(size, dtype=np.int32)
    facts = MappingProxyType({"a": 1})
    sender.send((array, array[::2], facts, "end"))
    sender.finish(5)
    assert over.wait(5)
    [(whole, half, mapping, end)] = received
    assert np.array_equal(whole, array)
    assert np.array_equal(half, array[::2])
    assert (mapping, end) == (facts, "end")
    large = size * 4 >= frames.OUT_OF_BAND
    assert any(isinstance(part, memoryview) and part.nbytes == size * 4
               for part in frames.encode(array)) == large  # fmt: skip
    whole[0] = 1  # Execution may hand it to a library that wants to own it.


def test_what_cannot_leave_is_said_to_the_sender():
    near, far = socket.socketpair()
    with near, far, pytest.raises(TypeError):
        Pipe(near, lambda message: None, lambda: None).send(threading.Lock())
