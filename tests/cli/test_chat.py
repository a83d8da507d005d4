"""`ninfer chat` with lines on stdin."""

from __future__ import annotations

import os
import pty
import re
import signal

from ninfer_core.contract.errors import NonFiniteOutput, Unsupported
from ninfer_core.testing.scripted_engine import plain_text
from ninfer_core.testing.scripted_reply import Reply


def asked(ninfer):
    """Every prompt that the engine was given."""
    return [plain_text(prompt) for prompt, _ in ninfer.engine.requests]


def test_the_conversation_is_remembered(ninfer):
    ninfer.script = lambda prompt, options: Reply.of(f"r{len(prompt.messages)}")
    done = ninfer("chat", "demo", stdin="one\n\ntwo\n")
    assert (done.code, done.out) == (0, "r1\nr3\n")
    assert asked(ninfer) == ["user: one", "user: one\nassistant: r1\nuser: two"]


def test_thinking_is_kept_beside_the_answer(ninfer):
    ninfer.script = lambda prompt, options: Reply.of("4", reasoning="2+2")
    done = ninfer("chat", "demo", stdin="one\ntwo\n")
    assert done.out == "4\n4\n"
    assert "2+2" in done.err
    turn = ninfer.engine.requests[1][0].messages[1]
    assert (turn["content"], turn["reasoning_content"]) == ("4", "2+2")


def test_slash_commands(ninfer):
    script = "one\n/reset\ntwo\n/system be brief\nthree\n/system\n/reset\nfour\n/exit\nfive\n"
    ninfer.script = lambda prompt, options: Reply.of("ok")
    done = ninfer("chat", "demo", "--system", "s", stdin=script)
    assert done.code == 0
    assert asked(ninfer) == [
        "system: s\nuser: one",
        "system: s\nuser: two",
        "system: be brief\nuser: two\nassistant: ok\nuser: three",
        "user: four",
    ]


def test_help_and_unknown_commands(ninfer):
    assert "/reset" in ninfer("chat", "demo", stdin="/help\n").err
    done = ninfer("chat", "demo", stdin="/dance\n")
    assert done.code == 1
    assert "unknown command /dance" in done.err


def test_a_failed_turn_leaves_no_trace(ninfer):
    def script(prompt, options):
        bad = plain_text(prompt).endswith("bad")
        return Reply.of("ok", error=NonFiniteOutput("NaN") if bad else None)

    ninfer.script = script
    done = ninfer("chat", "demo", stdin="good\nbad\nagain\n")
    assert done.code == 1
    assert "ninfer: error: NaN" in done.err
    assert asked(ninfer)[-1] == "user: good\nassistant: ok\nuser: again"


def test_turns_have_seeds_of_their_own(ninfer):
    ninfer("chat", "demo", "--seed", "40", stdin="one\ntwo\n")
    assert [o.sampling.seed for _, o in ninfer.engine.requests] == [40, 41]


def test_ctrl_c_stops_an_answer_and_keeps_the_conversation(spawn):
    ours, theirs = pty.openpty()
    process = spawn("slow", "chat", "demo", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)

    def until(text):
        seen = b""
        while text not in seen:
            seen += os.read(ours, 1000)
        return seen

    until(b"> ")
    os.write(ours, b"hi\n")
    until(b"01")
    process.send_signal(signal.SIGINT)
    until(b"cancelled")
    os.write(ours, b"more\n")
    until(b"012")
    process.send_signal(signal.SIGINT)
    # "user: hi", "assistant: 01…" and "user: more" are 24 bytes and what the first answer had
    assert int(re.search(rb"prompt (\d+) tokens", until(b"cancelled"))[1]) >= 26
    os.write(ours, b"/exit\n")
    assert process.wait(10) == 0
    os.close(ours)


def test_errors_name_options_and_not_fields_of_the_contract(ninfer):
    def refuse(prompt, options):
        raise Unsupported("chat.effort has no effect", param="chat.effort")

    ninfer.script = refuse
    done = ninfer("chat", "demo", "--reasoning-effort", "low", stdin="one\n")
    assert "ninfer: error: --reasoning-effort has no effect" in done.err
