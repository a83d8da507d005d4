"""Ctrl-C, broken pipes: in processes of their own, because signals are theirs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

import ninfer_core.cli

LIMIT = 10


def interrupted(process):
    """Send SIGINT; stdout, stderr and the seconds that the end took."""
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT)
    return out, err, time.monotonic() - began


@pytest.mark.parametrize("scene", ["slow", "stuck"])
def test_an_interrupted_answer_is_printed_as_far_as_it_came(spawn, scene):
    process = spawn(scene, "run", "demo", "--prompt", "hi")
    first = process.stdout.read(1)
    out, err, seconds = interrupted(process)
    assert process.returncode == 130
    assert first == "0"
    assert ("0" + out).startswith("0123456789"[: len(out)])
    assert out.endswith("\n")
    assert "Traceback" not in err
    assert seconds < LIMIT / 2


@pytest.mark.parametrize("scene", ["slow", "stuck"])
def test_an_interrupted_json_answer_is_still_one_object(spawn, scene):
    process = spawn(scene, "run", "demo", "--prompt", "hi", "--json")
    assert process.stderr.readline() == "asked\n"
    out, _, _ = interrupted(process)
    answer = json.loads(out)
    assert process.returncode == 130
    assert answer["finish_reason"] == "cancelled"
    assert "0123456789".startswith(answer["text"])


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_loading_can_be_interrupted(spawn, flags):
    process = spawn("loading", "run", "demo", "--prompt", "hi", *flags)
    assert process.stderr.readline() == "loading\n"
    out, err, seconds = interrupted(process)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert json.loads(out)["error"]["code"] == "cancelled" if flags else out == ""
    assert seconds < LIMIT / 2


def test_a_reader_that_leaves_ends_the_command_quietly(spawn):
    process = spawn("slow", "run", "demo", "--prompt", "hi")
    assert process.stdout.read(1) == "0"
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(LIMIT) == 1
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def test_help_imports_nothing_heavy():
    code = (
        "import sys, ninfer_gateway_cli.commands as c\n"
        "for name in ('run', 'chat', 'convert', 'inspect', 'verify'): getattr(c, name + '_app')\n"
        "import ninfer_gateway_http.command\n"
        "heavy = {'torch', 'numpy', 'transformers', 'pydantic', 'fastapi', 'uvicorn'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_ctrl_c_before_a_command_begins_is_quiet(monkeypatch):
    def interrupted_dispatch(line):
        raise KeyboardInterrupt

    monkeypatch.setattr(ninfer_core.cli, "_dispatch", interrupted_dispatch)
    assert ninfer_core.cli.main(["run"]) == 130
