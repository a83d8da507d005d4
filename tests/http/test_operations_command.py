"""`ninfer serve` as a process: keys from files, sockets, TLS, its log; and a real engine's time."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_gateway_http.options_operation import AccessGroup, BadKeys
from ninfer_gateway_http.settings import ServerSettings
from ninfer_gateway_http.sockets import CannotListen, listen_unix, tls_of
from tests.http.conftest import Running

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


def report_of(process):
    """The line of the start report that has the address."""
    for line in process.stderr:
        if line.startswith("ninfer: url: "):
            return line
    raise AssertionError("the server ended")


def end(process):
    """What the process wrote to stderr after its report."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    return process.stderr.read().splitlines()


def ask(url, key=None, context=None, **fields):
    headers = {"content-type": "application/json"} | ({"x-api-key": key} if key else {})
    request = urllib.request.Request(url + CHAT, json.dumps(HELLO | fields).encode(), headers)
    with urllib.request.urlopen(request, timeout=20, context=context) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def test_keys_come_from_options_and_a_file_and_the_log_can_be_json(spawn, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# of the team\nthree\n\n  four  # Ada's\n")
    process = spawn(
        *("--port", 0, "--api-key", "one", "--api-key", "two", "--api-key-file", keys),
        *("--log-format", "json"),
    )
    line = report_of(process)
    assert "API key needed" in line
    url = line.split()[2].removesuffix("/v1")
    for key in ("one", "two", "three", "four"):
        assert ask(url, key, max_tokens=2) == "01"
    for key in ("five", "# of the team", "Ada's"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(url, key)
    entries = [json.loads(line) for line in end(process) if not line.startswith("ninfer: ")]
    requests = [(entry["status"], entry.get("completion")) for entry in entries]
    assert requests == [(200, 2)] * 4 + [(401, None)] * 3


def test_a_server_that_was_meant_to_be_closed_is_not_open(tmp_path):
    empty = tmp_path / "empty"
    empty.write_text("# nothing\n\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for group, said in (
        (AccessGroup(api_key=["one", " "]), "a key is empty"),
        (AccessGroup(api_key_file=empty), "has no key"),
        (AccessGroup(api_key_file=binary), "cannot read"),
        (AccessGroup(api_key_file=tmp_path / "missing"), "cannot read"),
    ):
        with pytest.raises(BadKeys, match=said):
            group.keys()
    assert AccessGroup().keys() == ()


def test_sockets_and_certificates_that_cannot_be_used_are_said(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CannotListen, match="needs --tls-cert"):
        tls_of(None, file)
    with pytest.raises(CannotListen, match="cannot use --tls-cert"):
        tls_of(file, None)
    with pytest.raises(CannotListen, match="there is a file"), listen_unix(file):
        pass
    path = tmp_path / "n.sock"
    with listen_unix(path) as sock:
        sock.listen()
        with pytest.raises(CannotListen, match="another server"), listen_unix(path):
            pass
    assert not path.exists()


def test_a_unix_socket_serves_and_leaves_nothing_behind(spawn, tmp_path):
    path = tmp_path / "n.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    process = spawn("--uds", path)
    assert report_of(process).split()[2] == f"unix:{path}"
    connection = http.client.HTTPConnection("ninfer")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    headers = {"content-type": "application/json"}
    connection.request("POST", CHAT, json.dumps(HELLO | {"max_tokens": 1}), headers)
    answer = connection.getresponse()
    assert (answer.status, json.load(answer)["choices"][0]["message"]["content"]) == (200, "0")
    connection.close()
    end(process)
    assert not path.exists()


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate")
def test_tls(spawn, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-out", cert, "-keyout", key),
        ],
        check=True,
        capture_output=True,
    )
    process = spawn("--port", 0, "--tls-cert", cert, "--tls-key", key)
    url = report_of(process).split()[2].removesuffix("/v1")
    assert url.startswith("https://127.0.0.1:")
    assert ask(url, context=ssl.create_default_context(cafile=cert), max_tokens=3) == "012"
    with pytest.raises(OSError, match=r"closed|reset|Remote end"):
        ask(url.replace("https", "http"))
    end(process)


@pytest.fixture(scope="module")
def hasty():
    """The demo model behind a server that gives every request a third of a second."""
    with Engine.open("demo", EngineOptions(devices=("cpu",), max_context=2048)) as engine:
        server = Running(engine, ServerSettings(drain=0.0, request_timeout=0.3))
        server.start()
        yield server
        server.stop()


def test_a_request_that_takes_too_long_is_a_504(hasty, eventually):
    endless = {"prompt": "one two", "ignore_eos": True, "max_tokens": 2000}
    reply = hasty.request("/v1/completions", json.dumps(endless).encode())
    assert (reply.status, reply.error["code"]) == (504, "request_deadline_exceeded")
    streamed = hasty.request("/v1/completions", json.dumps(endless | {"stream": True}).encode())
    assert streamed.status == 200
    assert len(streamed.events) > 2
    assert streamed.events[-2]["error"]["code"] == "request_deadline_exceeded"
    assert streamed.events[-1] == "[DONE]"
    eventually(lambda: hasty.engine.stats().running == 0)
