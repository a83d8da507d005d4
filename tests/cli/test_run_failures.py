"""`ninfer run` when something is wrong: one line, an exit code, nothing half said."""

from __future__ import annotations

import json

import pytest

from ninfer_core.contract.errors import (
    EngineFailure,
    NonFiniteOutput,
    Overloaded,
    Unsupported,
)
from ninfer_core.testing.scripted_engine import failing


def wrong(ninfer, *args, code=2, stdin=None):
    """The one error line of a command that ends with ``code``."""
    done = ninfer("run", *args, stdin=stdin)
    assert done.code == code, done.err
    lines = [line for line in done.err.splitlines() if not line.startswith("ninfer: note:")]
    assert len(lines) == 1
    assert lines[0].startswith("ninfer: error: ")
    return lines[0]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "--prompt"),
        (["--prompt", "a", "--messages", "m.json"], "exactly one"),
        (["-", "--prompt", "a"], "exactly one"),
        (["demo", "words", "--prompt", "a"], "unexpected argument 'words'"),
        (["--prompt", "a", "--greedy", "--temperature", "0.5"], "--greedy and --temperature"),
        (["--prompt", "a", "--logprobs", "2"], "add --json"),
        (["--prompt", "a", "--json", "--logprobs", "21"], "logprobs is 21"),
        (["--prompt", "a", "--top-p", "1.5"], "top_p is 1.5"),
        (["--prompt", "a", "--temperature", "nan"], "temperature is nan"),
        (["--prompt", "a", "--seed", "-1"], "seed"),
        (["--prompt", "a", "--stop", ""], "stop string is empty"),
        (["--prompt", "a", "--kv-capacity", "lots"], "--kv-capacity is 'lots'"),
        (["--prompt", "a", "--draft-tokens", "3"], "--draft-tokens needs a draft backend"),
        (["no-such-model", "--prompt", "a"], "'no-such-model'"),
        (["--messages", "/no/such.json"], "--messages /no/such.json"),
        (["--prompt", " "], "the prompt is empty"),
    ],
)
def test_what_was_asked_wrongly_ends_with_2_before_a_model_is_loaded(ninfer, args, said):
    assert said in wrong(ninfer, *args)
    assert ninfer.opened == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('"hello"', "--messages is text"),
        ('[{"role": "wizard", "content": "a"}]', "wizard"),
        ('[{"content": "a"}]', "role"),
        ("[]", "messages"),
    ],
    ids=["cut", "deep", "text", "role", "no role", "none"],
)
def test_wrong_messages_are_named(ninfer, tmp_path, text, said):
    (tmp_path / "m.json").write_text(text)
    assert said in wrong(ninfer, "demo", "--messages", str(tmp_path / "m.json"))


def test_wrong_tools_are_named(ninfer, tmp_path):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": 7}}}
    (tmp_path / "t.json").write_text(json.dumps([tool]))
    line = wrong(ninfer, "demo", "--prompt", "a", "--tools", str(tmp_path / "t.json"))
    assert "--tools[0].function.parameters" in line


def test_a_file_that_is_no_text_is_named(ninfer, tmp_path):
    (tmp_path / "m.json").write_bytes(b"\xff\xfe\x00")
    assert "m.json" in wrong(ninfer, "demo", "--messages", str(tmp_path / "m.json"))


def test_a_prompt_over_the_context_gives_both_numbers(ninfer):
    ninfer.settings = {"max_context": 10}
    line = wrong(ninfer, "demo", "--prompt", "0123456789")
    assert "16 tokens" in line
    assert "10" in line


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NonFiniteOutput("NaN in row 0"), 1),
        (Overloaded("full"), 1),
        (Unsupported("no such effort", param="reasoning_effort"), 2),
    ],
)
def test_a_request_that_fails_says_why(ninfer, error, code):
    ninfer.script = failing(error, after="so far")
    done = ninfer("run", "demo", "--prompt", "a")
    assert done.code == code
    assert done.out == "so far\n"
    assert f"ninfer: error: {error}" in done.err
    assert "Traceback" not in done.err
    assert ninfer.engine.closed


def test_fields_of_the_contract_are_said_as_flags(ninfer):
    ninfer.script = failing(Unsupported("chat.effort has no effect", param="chat.effort"))
    done = ninfer("run", "demo", "--prompt", "a", "--reasoning-effort", "low")
    assert "error: --reasoning-effort has no effect" in done.err


def test_json_has_an_object_also_for_a_failure(ninfer):
    ninfer.script = failing(NonFiniteOutput("NaN in row 0"), after="so far")
    done = ninfer("run", "demo", "--prompt", "a", "--json")
    assert done.code == 1
    assert done.json == {
        "error": {"message": "NaN in row 0", "code": "nonfinite_output", "param": None}
    }


def test_an_engine_that_cannot_open_says_why(ninfer, monkeypatch):
    def broken(source, options, **rest):
        raise EngineFailure("the weights do not fit", hint="use a smaller --max-context")

    monkeypatch.setattr(ninfer, "open", broken)
    line = wrong(ninfer, "demo", "--prompt", "a", code=1)
    assert line == "ninfer: error: the weights do not fit (use a smaller --max-context)"


def test_the_traceback_comes_only_with_debug(ninfer, monkeypatch):
    def broken(source, options, **rest):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(ninfer, "open", broken)
    line = wrong(ninfer, "demo", "--prompt", "a", code=1)
    assert "ZeroDivisionError: oh" in line
    assert "--debug" in line
    done = ninfer("run", "demo", "--prompt", "a", "--debug")
    assert "Traceback (most recent call last)" in done.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--spec", "dflash"], "no draft backend is named 'dflash'"),
        (["--spec", "magic"], "no draft backend is named 'magic'"),
        (["--kv-dtype", "int2"], "int2"),
    ],
)
def test_parts_that_are_not_there_are_refused_before_loading(ninfer, flags, said):
    assert said in wrong(ninfer, "demo", "--prompt", "a", *flags)
    assert ninfer.opened == []


def test_an_unknown_option_is_a_usage_error(ninfer):
    done = ninfer("run", "--colour", "red")
    assert done.code == 2
    assert "--colour" in done.err
