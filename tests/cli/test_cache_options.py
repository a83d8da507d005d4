"""The context cache in `run` and `chat`: what reaches the engine, and what is said of it."""

from __future__ import annotations

import pytest

from ninfer_core.console.sizes import byte_size
from ninfer_core.contract.events import Timings
from ninfer_core.contract.reuse import RestoreKind, ReuseReason, Tier
from ninfer_core.errors import UsageError
from ninfer_core.testing.scripted_reply import Reply

WARM = Timings(
    prefill=0.5,
    decode=0.25,
    cached_tokens=5,
    reuse_reason=ReuseReason.PRIVATE_CHECKPOINT,
    reuse_point=RestoreKind.TURN_CLOSURE,
    reuse_tier=Tier.HOST,
)
COLD = Timings(prefill=0.5, decode=0.25, reuse_reason=ReuseReason.NO_MATCH)


def answered(timings):
    return lambda prompt, options: Reply.of("ok", timings=timings)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("10B", 10),
        ("8GiB", 8 << 30),
        ("8gib", 8 << 30),
        ("1.5 MiB", 3 << 19),
        ("2TiB", 1 << 41),
        ("0.5KiB", 512),
    ],
)
def test_sizes(text, size):
    assert byte_size(text, "--host-memory") == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "8GB", "8 G", "-1GiB", "1e3", "1.5", "0.3KiB", "1,5MiB"]
)
def test_what_is_no_size(text):
    with pytest.raises(UsageError, match=r"^--host-memory is .* \(give a size, such as 8GiB"):
        byte_size(text, "--host-memory")


@pytest.mark.parametrize("command", ["run", "chat"])
def test_options_reach_the_engine(ninfer, command):
    flags = ["--cache", "reuse", "--cache-slots", "3", "--host-memory", "8GiB"]
    asked = ["--prompt", "x"] if command == "run" else []
    assert ninfer(command, "demo", *asked, *flags).code == 0
    options = ninfer.opened[0][1]
    assert (options.cache_policy, options.extra_state_slots) == ("reuse", 3)
    assert options.host_bytes == 8 << 30


@pytest.mark.parametrize("command", ["run", "chat"])
def test_without_options_contexts_are_kept_as_the_planner_finds_room(ninfer, command):
    asked = ["--prompt", "x"] if command == "run" else []
    ninfer(command, "demo", *asked)
    options = ninfer.opened[0][1]
    assert (options.cache_policy, options.extra_state_slots) == ("reuse", None)
    assert options.host_bytes is None


def test_the_cache_is_switched_off(ninfer):
    ninfer("run", "demo", "--prompt", "x", "--cache", "off")
    options = ninfer.opened[0][1]
    assert (options.cache_policy, options.extra_state_slots) == ("off", None)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--cache", "lru"], "no cache policy is named 'lru' (installed: off, reuse)"),
        (["--cache", "off", "--cache-slots", "2"], "--cache off keeps nothing in --cache-slots"),
        (["--host-memory", "much"], "--host-memory is 'much'"),
    ],
)
def test_wrong_options_end_with_2(ninfer, flags, said):
    done = ninfer("run", "demo", "--prompt", "x", *flags)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert ninfer.opened == []


def test_cached_tokens_are_reported_with_the_reason(ninfer):
    ninfer.script = answered(WARM)
    said = ninfer("run", "demo", "--prompt", "12345678").err
    # "user: 12345678" has 14 bytes, of which 9 were read in half a second
    assert "prompt 9 tokens in 0.50 s (18.0/s) · cached 5 of 14 tokens (private_checkpoint)" in said


def test_no_cached_tokens_are_reported_when_asked(ninfer):
    ninfer.script = answered(COLD)
    assert "cached" not in ninfer("run", "demo", "--prompt", "12345678").err
    for flag in ("-v", "--verbose"):
        said = ninfer("run", "demo", "--prompt", "12345678", flag).err
        assert "cached 0 of 14 tokens (no_match)" in said


def test_the_object_has_reason_point_and_tier(ninfer):
    ninfer.script = answered(WARM)
    answer = ninfer("run", "demo", "--prompt", "12345678", "--json").json
    assert answer["usage"]["cached_tokens"] == answer["timings"]["cached_tokens"] == 5
    assert {key: answer["timings"][f"reuse_{key}"] for key in ("reason", "point", "tier")} == {
        "reason": "private_checkpoint",
        "point": "turn_closure",
        "tier": "host",
    }


def test_a_scripted_chat_reports_when_asked(ninfer):
    ninfer.script = answered(WARM)
    assert "done" not in ninfer("chat", "demo", stdin="one\ntwo\n").err
    said = ninfer("chat", "demo", "-v", stdin="one\ntwo\n").err
    assert said.count("cached 5 of ") == 2


def test_the_turns_of_a_chat_share_a_session_until_it_is_forgotten(ninfer):
    ninfer("chat", "demo", stdin="one\ntwo\n/system be brief\nthree\n/reset\nfour\n")
    keys = [prompt.cache.session_key for prompt, _ in ninfer.engine.requests]
    assert keys[0]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    ninfer("chat", "demo", stdin="one\n")
    assert ninfer.engine.requests[0][0].cache.session_key not in keys
