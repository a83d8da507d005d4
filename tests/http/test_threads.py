"""What takes long in the gateway keeps no thread from what does not."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ninfer_core.contract.errors import InvalidRequest, Overloaded
from ninfer_core.contract.requests import PromptInput, ResponseFormat, ToolChoice
from ninfer_core.testing.scripted_engine import ScriptedEngine, echo
from ninfer_gateway_http.threads import LONG_CHARS, forms_line, is_long, may_compile

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
TALK = PromptInput(messages=({"role": "user", "content": "hi"},))


def test_plain_requests_go_on_however_many_forms_are_waited_for(serve, eventually):
    """More requests wait than the loop has threads for anything."""
    compiled, waiting = threading.Event(), threading.Semaphore(0)

    def script(prompt, options):
        if prompt.tools:
            waiting.release()
            assert compiled.wait(20)
        return echo(prompt, options)

    server = serve(script, capacity=100)
    with ThreadPoolExecutor(80) as clients:
        try:
            asked = [clients.submit(server.chat, "form", tools=[TOOL]) for _ in range(80)]
            assert waiting.acquire(timeout=20)
            eventually(lambda: server.server._gateway._forms._count == 80)
            assert server.chat("plain").json["choices"][0]["message"]["content"] == "plain"
            assert server.request("/health").status == 200
            assert server.request("/tokenize", b'{"prompt": "abc"}').json["count"] == 3
            refused = server.chat("x" * (LONG_CHARS + 1))
            assert refused.error["code"] == "context_length_exceeded"
        finally:
            compiled.set()
        assert [reply.result().status for reply in asked] == [200] * 80


def test_a_conversation_to_be_tokenized_holds_up_nobody(serve, monkeypatch):
    """Its tools may be the work of seconds, however short it is."""
    server = serve()
    entered, go, prepare = threading.Event(), threading.Event(), server.engine.prepare

    def slowly(prompt):
        entered.set()
        assert go.wait(5)
        return prepare(prompt)

    monkeypatch.setattr(server.engine, "prepare", slowly)
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(server.request, "/tokenize", json.dumps(body).encode())
        assert entered.wait(20)
        assert server.request("/health").status == 200
        go.set()
        assert asked.result().json["tokens"] == list(b"user: hi")


def test_more_forms_than_may_stand_in_line_are_asked_to_come_again():
    async def ask() -> None:
        forms, go = forms_line(threads=1, in_line=1), threading.Event()
        taken = [asyncio.ensure_future(forms.run(lambda: go.wait(20))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await forms.run(bool)
        go.set()
        assert await asyncio.gather(*taken) == [True, True]
        assert await forms.run(lambda: "later") == "later"

    asyncio.run(ask())


def test_a_full_line_is_a_429(serve):
    server = serve()
    server.server._gateway._forms = forms_line(threads=1, in_line=-1)
    reply = server.chat(tools=[TOOL])
    assert (reply.status, reply.error["code"]) == (429, "server_overloaded")
    assert reply.headers["retry-after"] == "1"
    assert server.chat().status == 200


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (TALK, False),
        (replace(TALK, tools=(TOOL,)), True),
        (replace(TALK, tools=(TOOL,), tool_choice=ToolChoice(mode="none")), False),
        (replace(TALK, response_format=ResponseFormat(kind="json_object")), True),
        (PromptInput(text="hi"), False),
        (ScriptedEngine().prepare(TALK), False),
    ],
)
def test_a_form_is_what_may_have_to_be_compiled(prompt, expected):
    assert may_compile(prompt) is expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (PromptInput(text="x" * LONG_CHARS), False),
        (PromptInput(text="x" * (LONG_CHARS + 1)), True),
        (PromptInput(token_ids=(1,) * (LONG_CHARS + 1)), True),
        (PromptInput(messages=({"role": "user", "content": "x" * (LONG_CHARS + 1)},)), True),
        (PromptInput(messages=({"role": "assistant", "content": None},)), False),
        (
            PromptInput(
                messages=(
                    {"role": "user", "content": [{"type": "text", "text": "x" * 40_000}] * 2},
                )
            ),
            True,
        ),
        (ScriptedEngine().prepare(TALK), False),
    ],
)
def test_a_long_prompt_is_one_that_has_yet_to_be_read(prompt, expected):
    assert is_long(prompt) is expected


def test_nobody_hears_of_work_that_fails_after_its_request_has_gone():
    """Else the loop logs it, and the texts of the request in it, when the future is collected."""
    heard = []

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, said: heard.append(said))
        forms, running, go = forms_line(threads=1), threading.Event(), threading.Event()

        def fail() -> None:
            running.set()
            assert go.wait(20)
            raise ValueError("secret")

        task = asyncio.ensure_future(forms.run(fail))
        assert await asyncio.to_thread(running.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        go.set()
        await forms.run(bool)
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(ask())
    gc.collect()
    assert heard == []


def test_a_form_that_is_refused_for_each_of_several_choices_leaves_no_traceback(serve, caplog):
    def script(prompt, options):
        time.sleep(0.05 * options.sampling.seed)  # the first is refused while the others run
        raise InvalidRequest("secret", param="structured_outputs")

    server = serve(script)
    assert server.chat(tools=[TOOL], n=3, seed=0).status == 400
    time.sleep(0.2)
    gc.collect()
    assert server.chat(tools=[TOOL], n=1, seed=0).status == 400
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
