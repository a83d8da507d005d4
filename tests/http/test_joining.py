"""Deltas that wait together become one: what clients put together from them stays the same."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from itertools import groupby

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from pydantic import TypeAdapter

from ninfer_core.contract.events import (
    Channel,
    Delta,
    Finished,
    FinishReason,
    GenerationResult,
    GenerationStart,
    ReuseReason,
    Timings,
    ToolCall,
    ToolDelta,
    Usage,
)
from ninfer_core.contract.sampling import TokenLogprobs, TopLogprob
from ninfer_gateway_http.anthropic.replies import MessageWriter
from ninfer_gateway_http.anthropic.stream import MessageEvents
from ninfer_gateway_http.bridge import Exchange
from ninfer_gateway_http.completions_replies import PromptEcho, TextWriter
from ninfer_gateway_http.joining import MOST_JOINED, take_joined
from ninfer_gateway_http.replies import ChatWriter
from ninfer_gateway_http.responses.output import Output
from ninfer_gateway_http.responses.reply import logprob_rows

SEEDS = range(25)
START = GenerationStart(prompt_tokens=3, reused_tokens=0, reuse_reason=ReuseReason.DISABLED)
SPELLINGS = [bytes([i]) for i in range(256)]  # Half of them are no text by themselves.


def token_bytes(ids):
    return [SPELLINGS[i] for i in ids]


def row(token, rng):
    top = tuple(TopLogprob(rng.randrange(256), -rng.random()) for _ in range(rng.randrange(3)))
    return TokenLogprobs(token, -rng.random(), top)


class Answer:
    """A random answer: what was meant, and the deltas that say it."""

    def __init__(self, seed):
        rng = self.rng = random.Random(seed)
        self.reasoning, self.text, self.calls = "", "", []
        self.deltas, self.ids, self.rows = [], [], []
        if rng.random() < 0.6:
            self.reasoning = self._prose(Channel.REASONING)
        if rng.random() < 0.8:
            self.text = self._prose(Channel.CONTENT)
        for index in range(rng.choice([0, 0, 1, 3])):
            self._call(index)

    def _add(self, channel, text="", tool=None):
        ids = tuple(self.rng.randrange(256) for _ in range(self.rng.randrange(3)))
        rows = tuple(row(token, self.rng) for token in ids)
        self.ids += ids
        self.rows += rows
        self.deltas.append(
            Delta(channel=channel, text=text, tool=tool, token_ids=ids, logprobs=rows)
        )

    def _prose(self, channel):
        words = [self.rng.choice(["", "a", "ß\n", "😀", '"', " the"]) for _ in range(40)]
        for word in (*words, "."):
            self._add(channel, word)
        return "".join(words) + "."

    def _call(self, index):
        arguments = json.dumps({"n": index, "s": 'ß"' * self.rng.randrange(9)})
        self.calls.append(ToolCall(f"call_{index}", f"f{index}", arguments))
        self._add(
            Channel.TOOL_CALL, tool=ToolDelta(index=index, id=f"call_{index}", name=f"f{index}")
        )
        left = arguments
        while left:
            size = self.rng.randrange(4)
            piece, left = left[:size], left[size:]
            tool = ToolDelta(index=index, arguments=piece) if piece else None
            self._add(Channel.TOOL_CALL, tool=tool)

    @property
    def result(self):
        return GenerationResult(
            text=self.text,
            reasoning=self.reasoning,
            tool_calls=tuple(self.calls),
            token_ids=tuple(self.ids),
            finish_reason=FinishReason.STOP_TOKEN,
            usage=Usage(prompt_tokens=3, completion_tokens=len(self.ids)),
            timings=Timings(),
            logprobs=tuple(self.rows),
        )

    def joined(self):
        """The deltas as a reader gets them that is behind now and then."""
        waiting, taken = deque(), []
        for delta in self.deltas:
            waiting.append(delta)
            while waiting and self.rng.random() < 0.2:
                taken.append(take_joined(waiting))
        while waiting:
            taken.append(take_joined(waiting))
        return taken


@pytest.fixture(params=SEEDS)
def answer(request):
    return Answer(request.param)


def test_nothing_is_lost_or_moved(answer):
    joined = answer.joined()
    assert [i for delta in joined for i in delta.token_ids] == answer.ids
    assert [one for delta in joined for one in delta.logprobs] == answer.rows
    kinds = [[kind for kind, _ in groupby(d.channel for d in ds)] for ds in (joined, answer.deltas)]
    assert kinds[0] == kinds[1]
    for channel, said in ((Channel.REASONING, answer.reasoning), (Channel.CONTENT, answer.text)):
        assert "".join(delta.text for delta in joined if delta.channel is channel) == said


def test_openai_client_puts_chat_chunks_together(answer):
    writer = ChatWriter(model="m", token_bytes=token_bytes, logprobs=True, prompt_ids=[1])
    state = ChatCompletionStreamState()
    chunks = [writer.delta(0, delta) for delta in answer.joined()]
    ids, thought = [], ""
    for chunk in [writer.opening(0), *chunks, writer.closing(0, answer.result)]:
        if chunk is not None:
            json.dumps(chunk).encode()
            state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
            ids += chunk["choices"][0].get("token_ids", [])
            thought += chunk["choices"][0]["delta"].get("reasoning_content", "")
    (choice,) = state.get_final_completion().choices
    calls = [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]
    assert calls == [(call.id, call.name, call.arguments) for call in answer.calls]
    assert (choice.message.content, thought, ids) == (answer.text, answer.reasoning, answer.ids)
    rows = choice.logprobs.content if choice.logprobs else []
    assert [one.logprob for one in rows] == [one.logprob for one in answer.rows]
    assert [one.bytes for one in rows] == [list(SPELLINGS[i]) for i in answer.ids]
    assert [[top.logprob for top in one.top_logprobs] for one in rows] == [
        [top.logprob for top in one.top] for one in answer.rows
    ]


def test_completion_chunks_put_together_are_the_whole(answer):
    prompts = [PromptEcho("", [])]
    writers = [
        TextWriter(
            model="m", token_bytes=token_bytes, prompts=prompts, logprobs=True, ids=True, id="i"
        )
        for _ in range(2)
    ]
    whole = writers[0].whole([answer.result])["choices"][0]["logprobs"]
    assert len(whole["tokens"]) == len(answer.ids)
    text, ids, logprobs = "", [], {name: [] for name in whole}
    for delta in answer.joined():
        chunk = writers[1].delta(0, delta)
        if chunk is not None:
            choice = chunk["choices"][0]
            text += choice["text"]
            ids += choice.get("token_ids", [])
            for name, values in (choice["logprobs"] or {}).items():
                logprobs[name] += values
    assert text == answer.reasoning + answer.text
    assert (ids, logprobs) == (answer.ids, whole)


def test_anthropic_client_puts_events_together(answer):
    written, parse = MessageEvents(MessageWriter("m")), TypeAdapter(RawMessageStreamEvent)
    events = [*written.opening(START)]
    for delta in answer.joined():
        events += written.delta(delta)
    events += written.closing(answer.result)
    snapshot, buffers = None, {}
    for event in events:
        snapshot = accumulate_event(
            event=parse.validate_python(event), current_snapshot=snapshot, json_bufs=buffers
        )
    whole = MessageWriter("m").message(answer.result)
    expected = {"thinking": "thinking", "text": "text", "tool_use": "input"}
    assert [(block.type, getattr(block, expected[block.type])) for block in snapshot.content] == [
        (block["type"], block[expected[block["type"]]]) for block in whole["content"]
    ]


def test_responses_events_and_items_are_those_of_single_deltas(answer):
    def play(deltas):
        output = Output(lambda rows: logprob_rows(rows, token_bytes), pack=False)
        events = [event for delta in deltas for event in output.add(delta)]
        events += output.end("completed", [call.id for call in answer.calls])
        said, steps = {}, []
        for event in events:
            key = (event["output_index"], event["type"])
            if event["type"].endswith(".delta"):
                said[key] = said.get(key, "") + event["delta"]
            else:
                steps.append(event["type"])
        items = [{k: v for k, v in item.items() if k != "id"} for item in output.items()]
        return items, steps, said

    items, steps, said = play(answer.joined())
    assert (items, steps, said) == play(answer.deltas)
    assert [item["arguments"] for item in items if item["type"] == "function_call"] == [
        call.arguments for call in answer.calls
    ]


def test_a_joined_delta_has_a_bound():
    waiting = deque(Delta(channel=Channel.CONTENT, text="a") for _ in range(MOST_JOINED + 5))
    assert [len(take_joined(waiting).text) for _ in range(2)] == [MOST_JOINED, 5]


def test_pieces_of_two_calls_and_other_events_stay_apart():
    pieces = [ToolDelta(index=0, arguments="a"), ToolDelta(index=1, arguments="b")]
    calls = [Delta(channel=Channel.TOOL_CALL, tool=tool) for tool in pieces]
    again = Delta(channel=Channel.TOOL_CALL, tool=ToolDelta(index=0, id="c", name="f"))
    text = Delta(channel=Channel.CONTENT, text="a")
    for one, other in [(calls[0], calls[1]), (calls[0], again), (text, calls[0]), (START, text)]:
        assert take_joined(deque([one, other])) is one


class Handle:
    """Publishes what it is given when it is told to."""

    def __init__(self):
        self.events = deque()

    def subscribe(self, wake):
        self.wake = wake

    def next_event(self, timeout):
        if not self.events:
            raise TimeoutError
        return self.events.popleft()

    def close(self):
        pass

    def publish(self, *events):
        self.events += events
        self.wake()


def test_a_reader_that_keeps_up_gets_every_delta_and_one_that_does_not_what_waits():
    async def run():
        handle = Handle()
        exchange = Exchange(handle)
        seen = []
        for text in "abc":
            waiting = asyncio.ensure_future(exchange.next_event(20))
            await asyncio.sleep(0)
            handle.publish(Delta(channel=Channel.CONTENT, text=text))
            seen.append((await waiting).text)
        for text in "def":
            handle.publish(Delta(channel=Channel.CONTENT, text=text))
        handle.publish(Finished(Answer(0).result))
        seen.append((await exchange.next_event(20)).text)
        assert isinstance(await exchange.next_event(20), Finished)
        assert await exchange.next_event(20) is None
        exchange.close()
        return seen

    assert asyncio.run(run()) == ["a", "b", "c", "def"]
