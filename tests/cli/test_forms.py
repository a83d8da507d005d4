"""The form of an answer as options of `ninfer run`."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(autouse=True)
def served(monkeypatch):
    """An engine that takes every form."""
    monkeypatch.setattr("ninfer_core.testing.scripted_engine._refuse_constraints", lambda _: None)


def asked(ninfer, *arguments):
    done = ninfer("run", "demo", "--prompt", "x", *arguments)
    assert done.code == 0, done.err
    ((prompt, _),) = ninfer.engine.requests
    return prompt.response_format


def test_a_schema_from_a_file(ninfer, tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"type": "integer"}))
    form = asked(ninfer, "--json-schema", str(path))
    assert (form.kind, form.value, form.strict) == ("json_schema", {"type": "integer"}, True)


def test_a_grammar_from_a_file(ninfer, tmp_path):
    path = tmp_path / "g.gbnf"
    path.write_text('root ::= "é"\n', encoding="utf-8")
    form = asked(ninfer, "--grammar", str(path))
    assert (form.kind, form.value) == ("grammar", 'root ::= "é"\n')


@pytest.mark.parametrize(
    ("arguments", "kind", "value"),
    [
        (["--json-object"], "json_object", None),
        (["--regex", "a+"], "regex", "a+"),
        (["--choice", "red", "--choice", "blue"], "choice", ["red", "blue"]),
        ([], "text", None),
    ],
)
def test_forms_from_the_command_line(ninfer, arguments, kind, value):
    form = asked(ninfer, *arguments)
    assert (form.kind, form.value) == (kind, value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--json-object", "--regex", "a"], "--json-object and --regex exclude each other"),
        (["--json-schema", "{missing}"], "No such file"),
        (["--json-schema", "{broken}"], "is not JSON"),
        (["--json-schema", "{wrong}"], "'/type'"),
    ],
)
def test_wrong_forms_are_named(ninfer, tmp_path, arguments, words):
    (tmp_path / "broken").write_text("{")
    (tmp_path / "wrong").write_text('{"type": "strange"}')
    paths = {name: str(tmp_path / name) for name in ("missing", "broken", "wrong")}
    done = ninfer("run", "demo", "--prompt", "x", *(a.format(**paths) for a in arguments))
    assert done.code == 2
    assert words in done.err


def test_the_engine_is_asked_to_tell_the_model_the_form(ninfer):
    asked(ninfer, "--json-object", "--schema-instruction")
    ((_, options),) = ninfer.opened
    assert options.schema_instruction
    asked(ninfer, "--json-object")
    assert not ninfer.opened[-1][1].schema_instruction


def test_an_instruction_without_a_form_is_refused(ninfer):
    done = ninfer("run", "demo", "--prompt", "x", "--schema-instruction")
    assert done.code == 2
    assert "--schema-instruction has no form to tell the model" in done.err


def test_a_form_in_the_file_of_messages_counts_and_is_the_only_one(ninfer, tmp_path):
    path = tmp_path / "m.json"
    message = {"role": "user", "content": "x"}
    form = {"type": "json_object"}
    path.write_text(json.dumps({"messages": [message], "response_format": form}))
    done = ninfer("run", "demo", "--messages", str(path), "--schema-instruction")
    assert done.code == 0, done.err
    ((prompt, _),) = ninfer.engine.requests
    assert prompt.response_format.kind == "json_object"
    done = ninfer("run", "demo", "--messages", str(path), "--regex", "a")
    assert done.code == 2
    assert "--messages names the form" in done.err
