"""Real servers on loopback ports: over a scripted engine, and `ninfer serve` of the demo model."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from ninfer_core.testing.scripted_engine import Script, ScriptedEngine, echo
from ninfer_gateway_http import joining
from ninfer_gateway_http.app import create_app
from ninfer_gateway_http.server import Server, listen, url_of
from ninfer_gateway_http.settings import ServerSettings

DRIVER = Path(__file__).with_name("driver.py")


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The data of a stream; the closing word as text."""
        data = [line[6:] for line in self.text.split("\n\n") if line.startswith("data: ")]
        return [word if word == "[DONE]" else json.loads(word) for word in data]


class Running:
    """One server in a thread of its own."""

    def __init__(self, engine: ScriptedEngine, settings: ServerSettings) -> None:
        self.engine = engine
        self.ready = threading.Event()
        self.server = Server(create_app(engine, settings), self.ready.set)
        self.sock = listen("127.0.0.1", 0)
        self.url = url_of(self.sock)
        self.port = self.sock.getsockname()[1]
        self._thread = threading.Thread(target=self.server.serve_on, args=(self.sock,))

    def start(self) -> None:
        self._thread.start()
        assert self.ready.wait(20)

    def stop(self) -> None:
        self.server.should_exit = True
        self.join()

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=20)

    def request(
        self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Reply:
        return _send(self.url + path, body, {"content-type": "application/json", **(headers or {})})

    def chat(self, text: str = "hi", **fields: Any) -> Reply:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return self.request("/v1/chat/completions", json.dumps(body).encode())


def _send(url: str, body: bytes | None, headers: dict[str, str]) -> Reply:
    request = urllib.request.Request(url, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return Reply(answer.status, _lower(answer.headers), answer.read().decode())
    except urllib.error.HTTPError as error:
        return Reply(error.code, _lower(error.headers), error.read().decode())


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@pytest.fixture
def serve() -> Iterator[Callable[..., Running]]:
    """Start servers: ``serve(script, settings, **engine)``; all end with the test."""
    running: list[Running] = []

    def start(
        script: Script = echo, settings: ServerSettings | None = None, **engine: Any
    ) -> Running:
        settings = settings or ServerSettings(drain=0.0)
        server = Running(ScriptedEngine(script, **engine), settings)
        running.append(server)
        server.start()
        return server

    yield start
    for server in running:
        server.stop()


@pytest.fixture(scope="session")
def _shared() -> Iterator[Running]:
    server = Running(ScriptedEngine(), ServerSettings(drain=0.0))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(_shared: Running) -> Running:
    """One server for many tests; set ``server.engine.script`` to choose its answers."""
    _shared.engine.script = echo
    _shared.engine.requests.clear()
    return _shared


@dataclass(frozen=True)
class Served:
    """`ninfer serve` over the demo model, in processes of its own."""

    url: str
    process: subprocess.Popen[str]

    @classmethod
    def start(cls, *options: str) -> Served:
        ninfer = str(Path(sys.executable).with_name("ninfer"))
        command = [ninfer, "serve", "demo", "--port", "0", "--device", "cpu", *options]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            if line.startswith("ninfer: url: "):
                threading.Thread(target=process.stderr.read, daemon=True).start()
                return cls(line.split()[2].removesuffix("/v1"), process)
            said.append(line)
        raise AssertionError(f"the server ended with {process.wait()}: {''.join(said)}")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(60) == 0
        finally:
            self.process.kill()

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60
        )

    def post(self, path: str, **body: Any) -> Reply:
        headers = {"content-type": "application/json"}
        return _send(self.url + path, json.dumps(body).encode(), headers)

    def get(self, path: str) -> Reply:
        return _send(self.url + path, None, {})


@pytest.fixture(scope="session")
def demo() -> Iterator[Served]:
    """One server for all tests of a run that only ask it."""
    served = Served.start("--max-concurrency", "4", "--max-context", "1024")
    yield served
    served.stop()


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deltas stay as the script says them, also for a server that is behind."""
    monkeypatch.setattr(joining, "MOST_JOINED", 1)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition holds; fail after ten seconds."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "the condition never held"
            time.sleep(0.01)

    return wait


@pytest.fixture(scope="session")
def _typing() -> Iterator[Running]:
    spec = importlib.util.spec_from_file_location("typist", Path(__file__).with_name("typist.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    server = Running(module.Typist(), ServerSettings(drain=0.0))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def says(_typing: Running) -> Callable[..., Running]:
    """A server whose model writes given text or token ids: ``says(raw, interval)``."""

    def writes(raw: str | list[int], interval: float = 0.0) -> Running:
        engine: Any = _typing.engine
        engine.raw, engine.interval = raw, interval
        return _typing

    return writes


@pytest.fixture
def spawn(tmp_path):
    """Start `ninfer serve` over a scripted engine and end it with the test."""
    artifact = tmp_path / "m.ninfer"
    artifact.touch()
    started = []

    def start(*args):
        command = [sys.executable, str(DRIVER), str(artifact), *map(str, args)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()
