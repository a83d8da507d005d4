"""`ninfer serve` as a process: its report, its exit code, its signals."""

from __future__ import annotations

import json
import signal
import threading
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ninfer_core.contract.engine import EngineOptions
from ninfer_core.plugins import host_of
from ninfer_core.testing.scripted_engine import ScriptedEngine
from ninfer_gateway_http.command import serve_app
from ninfer_gateway_http.options import ServerGroup
from ninfer_gateway_http.server import listen
from ninfer_gateway_http.settings import ServerSettings
from ninfer_gateway_http.start_report import start_report

HELLO = {"messages": [{"role": "user", "content": "hi"}]}


def report_of(process):
    """The start report; its last line has the address."""
    lines = []
    while not lines or not lines[-1].startswith("ninfer: url: "):
        lines.append(process.stderr.readline())
        assert lines[-1], "the server ended"
    return lines, lines[-1].split()[2].removesuffix("/v1")


def post(url, headers=None, **fields):
    data = json.dumps(HELLO | fields).encode()
    headers = {"content-type": "application/json", **(headers or {})}
    request = urllib.request.Request(f"{url}/v1/chat/completions", data, headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def health(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=20) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def test_it_reports_serves_and_stops_when_asked(spawn):
    process = spawn("--port", "0", "--model-id", "mine", "--max-concurrency", "4")
    lines, url = report_of(process)
    report = "".join(lines)
    assert "serving: mine (scripted)" in report
    assert "4096 tokens" in report
    assert "16 may wait" in report
    assert post(url, max_tokens=3)["choices"][0]["message"]["content"] == "012"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    rest = process.stderr.read()
    assert "stopped" in rest
    assert "POST '/v1/chat/completions' 200" in rest
    assert "Traceback" not in rest


def test_a_running_answer_is_finished_after_the_signal(spawn):
    process = spawn("--port", "0")
    _, url = report_of(process)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(post(url, max_tokens=10)))
    thread.start()
    while health(url)["running"] == 0:
        pass
    process.send_signal(signal.SIGINT)
    thread.join(20)
    assert answers[0]["choices"][0]["message"]["content"] == "0123456789"
    assert process.wait(20) == 0


def test_a_second_signal_ends_now(spawn):
    process = spawn("--port", "0", "--drain-seconds", "60")
    _, url = report_of(process)
    failures = []

    def ask():
        try:
            post(url)
        except (urllib.error.URLError, ConnectionError) as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while health(url)["running"] == 0:
        pass
    process.send_signal(signal.SIGTERM)
    while health(url)["status"] != "draining":
        pass
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    thread.join(20)
    assert len(failures) == 1


def test_keys_come_from_the_environment_too(spawn, monkeypatch):
    monkeypatch.setenv("NINFER_API_KEYS", "one two")
    process = spawn("--port", "0")
    lines, url = report_of(process)
    assert "API key needed" in lines[-1]
    assert "one" not in "".join(lines)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        post(url)
    assert post(url, {"x-api-key": "two"}, max_tokens=1)["object"] == "chat.completion"


def test_a_taken_port_ends_with_one_line(spawn):
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        process = spawn("--port", str(taken.getsockname()[1]))
        assert process.wait(20) == 1
    [line] = process.stderr.read().splitlines()
    assert line.startswith("ninfer: error: cannot listen on 127.0.0.1:")


@pytest.mark.parametrize("told", [True, False])
def test_the_engine_is_asked_to_tell_the_model_forms(told):
    options = ServerGroup(schema_instruction=told).widen(EngineOptions())
    assert options.schema_instruction is told


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--max-gap-ms", "0"], "--max-gap-ms is 0.0; it must be above 0"),
        (["--max-gap-ms", "9", "--max-concurrency", "1"], "--max-concurrency is 1"),
    ],
)
def test_errors_of_the_start_name_options(monkeypatch, tmp_path, arguments, named):
    monkeypatch.setattr("ninfer_gateway_http.command.log_to_stderr", lambda *given: None)
    path = tmp_path / "m.ninfer"
    path.touch()
    done = CliRunner().invoke(serve_app, [str(path), "--port", "0", *arguments], obj=host_of({}))
    assert done.exit_code == 2
    assert named in done.stderr


def test_the_start_names_the_drafter_that_runs():
    asked, settings = EngineOptions(), ServerSettings()
    plain = ScriptedEngine().load_summary()
    drafting = replace(plain, details={"draft": {"backend": "mtp", "tokens": 3}})
    for summary, told in ((plain, False), (drafting, True)):
        features = dict(start_report(summary, settings, asked, "http://h"))["features"]
        assert ("speculation by mtp, 3 drafts at most" in features) is told
