"""The installed `ninfer` command over the demo model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

NINFER = str(Path(sys.executable).with_name("ninfer"))
QUESTION = "What is 17 + 25?"
TORN = "{% if messages"
HELLO = [{"role": "user", "content": QUESTION}]


def ninfer(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([NINFER, *args], capture_output=True, text=True, timeout=120)


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `ninfer` and end it with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, **pipes: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen([NINFER, *args], stderr=subprocess.PIPE, text=True, **pipes)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    """A client of `ninfer serve demo` in a process of its own."""
    command = [NINFER, "serve", "demo", "--port", "0", "--device", "cpu", "--max-concurrency", "4"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = ""
    while not url:
        line = process.stderr.readline()
        assert line, "the server ended"
        url = line.split()[2] if line.startswith("ninfer: url: ") else ""
    yield openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 0, rest


def test_a_flipped_weight_is_met_before_an_answer(tmp_path):
    from ninfer_demo_model.source import resolve

    data = bytearray(resolve().read_bytes())
    data[len(data) // 2] ^= 0x40
    flipped = tmp_path / "flipped.ninfer"
    flipped.write_bytes(data)
    done = ninfer("run", str(flipped), "--greedy", "--prompt", QUESTION)
    [line] = done.stderr.splitlines()
    assert "does not match its recorded SHA-256" in line
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--device", "tpu", "device tpu:0: the TPU device is not provided"),
        ("--device", "cpu:1", "there is only one cpu"),
        ("--kv-dtype", "bf16", "is not served on cpu (give --kv-dtype fp32, or leave it out)"),
        ("--activations", "bf16", "activations is 'bf16' (give auto or a16)"),
        ("--chat-template", "/no/such/file", "chat template /no/such/file cannot be read"),
        ("--chat-template", TORN, "(mend the template, or give another with --chat-template)"),
        ("--kv-capacity", "1", "raise --kv-capacity to 8192"),
        ("--max-context", "99999999", "this model has 32768 positions"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(option, value, said, tmp_path):
    if value == TORN:
        value = str(tmp_path / "torn.jinja")
        Path(value).write_text(TORN)
    done = ninfer("run", "demo", "--prompt", "a", option, value)
    [line] = done.stderr.splitlines()
    assert line.startswith("ninfer: error: ")
    assert said in line
    assert (done.returncode, done.stdout) == (2, "")


def test_run_answers_rightly():
    done = ninfer("run", "demo", "--greedy", "--json", "--prompt", QUESTION)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["text"] == "42"
    assert answer["finish_reason"] == "stop_token"
    assert answer["usage"]["completion_tokens"] > 0


def test_run_prints_the_answer_alone():
    done = ninfer("run", "--greedy", "--prompt", QUESTION)
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert "'demo'" in done.stderr


def test_run_refuses_a_prompt_over_the_context():
    done = ninfer("run", "demo", "--max-context", "64", "--prompt", "one two three " * 200)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the context holds 64" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--device", "xpu"], "device xpu:0"),
        (["--chat-template", "no-such.jinja"], "no-such.jinja cannot be read"),
        (["--kv-dtype", "int3"], "int3"),
    ],
)
def test_run_refuses_what_cannot_be_opened_as_asked(flags, said):
    done = ninfer("run", "demo", "--prompt", QUESTION, *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_ctrl_c_prints_what_was_produced(spawn):
    flags = ["--prompt", QUESTION, "--ignore-eos", "--device", "cpu", "--max-context", "32768"]
    process = spawn("run", "demo", *flags, stdout=subprocess.PIPE)
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out.endswith("\n")
    assert "cancelled" in err
    assert "Traceback" not in err


def test_chat_remembers(spawn):
    process = spawn("chat", "demo", "--greedy", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, err = process.communicate(f"{QUESTION}\n{QUESTION}\n", timeout=120)
    assert process.returncode == 0, err
    assert out.splitlines()[0] == "42"
    assert len(out.splitlines()) == 2


def test_serve_answers_rightly_streaming_and_not(client):
    asked = {"model": client.models.list().data[0].id, "messages": HELLO, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.content == "42"
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "42"
    assert chunks[-1].usage == whole.usage


def test_serve_clamps_and_refuses_by_name(client):
    model = client.models.list().data[0]
    capped = client.chat.completions.create(
        model=model.id, messages=HELLO, temperature=0, max_tokens=10 * model.max_model_len
    )
    assert capped.choices[0].message.content == "42"
    assert any("clamped" in warning for warning in capped.warnings)
    for fields in (
        {"logit_bias": {"9999999": 5}},
        {"top_logprobs": 99, "logprobs": True},
        {"n": 0},
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=model.id, messages=HELLO, **fields)
        assert caught.value.param == next(iter(fields))


def test_serve_refuses_half_a_character(client):
    body = b'{"messages": [{"role": "user", "content": "a \\ud800"}]}'
    request = urllib.request.Request(
        f"{client.base_url}chat/completions", body, {"content-type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError, match="400") as caught:
        urllib.request.urlopen(request, timeout=60)
    error = json.load(caught.value)["error"]
    assert (error["param"], error["code"]) == ("messages", "invalid_prompt")


def test_serve_takes_system_messages_anywhere(client):
    model = client.models.list().data[0].id
    for turns in (
        [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, *HELLO],
        [*HELLO, {"role": "system", "content": "b"}, *HELLO],
        [{"role": "developer", "content": "a"}, *HELLO],
    ):
        done = client.chat.completions.create(model=model, messages=turns, max_tokens=4)
        assert done.usage.completion_tokens > 0


def test_a_cut_answer_has_the_length_reason_and_its_logprobs(client):
    cut = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=HELLO,
        max_tokens=2,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
        extra_body={"ignore_eos": True},
    )
    assert cut.choices[0].finish_reason == "length"
    rows = cut.choices[0].logprobs.content
    assert len(rows) == cut.usage.completion_tokens == 2
    for row in rows:
        # greedy: the token that was taken is the likeliest
        assert row.logprob == row.top_logprobs[0].logprob
        assert row.bytes == row.top_logprobs[0].bytes
        assert len(row.top_logprobs) == 3
