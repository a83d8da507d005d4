"""Servers of the demo model for the acceptance scripts of HTTP, and what they hold of memory."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Served:
    """`ninfer serve` in processes of its own; ``pids`` are the gateway's and the engine's."""

    url: str
    pids: tuple[int, ...]

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    def metrics(self) -> dict[str, float]:
        """The samples of /metrics that have no labels but the model's name; ``ended`` is the number
        of requests that ended in any way."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        ends = [
            line for line in text.splitlines() if line.startswith("vllm:request_success_total{")
        ]
        return plain_samples(text) | {"ended": sum(float(line.split()[-1]) for line in ends)}

    def resident_bytes(self) -> list[int]:
        return [resident_bytes(pid) for pid in self.pids]


@contextlib.contextmanager
def served(*options: str) -> Iterator[Served]:
    """`ninfer serve demo` with ``options``, which ends with the block."""
    ninfer = str(Path(sys.executable).with_name("ninfer"))
    command = [ninfer, "serve", "demo", "--port", "0", "--device", "cpu", "--log-level", "error"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = next(line for line in process.stderr if line.startswith("ninfer: url: "))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        url = said.split()[2].removesuffix("/v1")
        yield Served(url, (process.pid, *children_of(process.pid)))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, "the server did not end well"
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def capped(limit: int, *, context: int = 1024) -> Iterator[str]:
    """The address of a server in this process whose answers have at most ``limit`` tokens."""
    from ninfer_core.contract.engine import EngineOptions

    options = EngineOptions(
        devices=("cpu",), max_concurrency=4, max_context=context, queue_timeout=None
    )
    with in_process(options, limit) as (_, url):
        yield url


@contextlib.contextmanager
def in_process(options: Any, limit: int | None = None) -> Iterator[tuple[Any, str]]:
    """An engine of the demo model and the address of a server over it in this process; answers
    have at most ``limit`` tokens."""
    from ninfer_core import Engine
    from ninfer_gateway_http.app import create_app
    from ninfer_gateway_http.server import Server
    from ninfer_gateway_http.settings import ServerSettings
    from ninfer_gateway_http.sockets import listen, url_of

    ready = threading.Event()
    with Engine.open("demo", options) as engine, listen("127.0.0.1", 0) as sock:
        asked: Any = engine if limit is None else _Capped(engine, limit)
        server = Server(create_app(asked, ServerSettings(drain=0.0)), ready.set)
        thread = threading.Thread(target=server.serve_on, args=(sock,))
        thread.start()
        assert ready.wait(60), "the server did not start"
        try:
            yield engine, url_of(sock)
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def log_tail(lines: int = 200) -> Iterator[deque[str]]:
    """The latest lines that anything in this process logs within, with what was raised."""
    kept: deque[str] = deque(maxlen=lines)
    handler = _Keeping(kept)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield kept
    finally:
        root.removeHandler(handler)


class _Keeping(logging.Handler):
    def __init__(self, kept: deque[str]) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.extend(self.format(record).splitlines())


class _Capped:
    """``engine`` with a limit on every answer."""

    def __init__(self, engine: Any, limit: int) -> None:
        self._engine = engine
        self._limit = limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, prompt: Any, options: Any) -> Any:
        asked = options.max_new_tokens
        least = self._limit if asked is None else min(asked, self._limit)
        least = max(least, options.min_tokens or 0) if asked is None else least
        return self._engine.submit(prompt, dataclasses.replace(options, max_new_tokens=least))


def plain_samples(text: str) -> dict[str, float]:
    """Name and value of each sample of a Prometheus text that has at most the model's label."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        name, _, labels = name.partition("{")
        if not line.startswith("#") and labels.count('="') <= 1 and "le=" not in labels:
            found.setdefault(name, float(value))
    return found


def resident_bytes(pid: int) -> int:
    """What the process holds of memory now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"process {pid} is gone")


def children_of(pid: int) -> tuple[int, ...]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return tuple(int(word) for word in text.split())
