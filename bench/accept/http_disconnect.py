"""How soon a place is free again after its client closed the connection.

Usage: python bench/accept/http_disconnect.py [--times 200] [--url URL]

A client asks for an endless answer, streamed or whole, and closes its socket after the first token
(streamed) or once the engine runs it (whole). The time until the engine counts no running request
is measured by asking /metrics without a pause, so it includes the last of those questions. Without
--url a `ninfer serve` of the demo model is started, with the engine in its own process. The line:
the 99th percentile is at most 200 ms. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import socket
import statistics
import time
from typing import Any

from _server import Served, plain_samples, served
from _setting import print_report

LIMIT_MS = 200.0
GIVE_UP = 30.0
RUNNING = "vllm:num_requests_running"


def measure(url: str, times: int) -> list[dict[str, Any]]:
    """One entry for each disconnect: ``streamed`` and ``ms``."""
    server = Served(url, ())
    watch = http.client.HTTPConnection(*server.address, timeout=GIVE_UP)
    found = []
    for number in range(times):
        streamed = number % 2 == 0
        with contextlib.closing(_asked(server, streamed)) as sock:
            if streamed:
                _read_until(sock, b'"text":')
            _wait(watch, 1)
        found.append({"streamed": streamed, "ms": 1000 * _wait(watch, 0)})
    watch.close()
    return found


def percentile(values: list[float], share: float) -> float:
    """The smallest value that so large a share of ``values`` does not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]


def _asked(server: Served, streamed: bool) -> socket.socket:
    asked = {"prompt": "one two three", "ignore_eos": True, "max_tokens": 4000, "stream": streamed}
    body = json.dumps(asked).encode()
    sock = socket.create_connection(server.address, timeout=GIVE_UP)
    sock.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        + f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return sock


def _read_until(sock: socket.socket, mark: bytes) -> None:
    data = b""
    while mark not in data:
        piece = sock.recv(65536)
        assert piece, data
        data += piece


def _wait(watch: http.client.HTTPConnection, running: int) -> float:
    """Seconds until the engine counts so many running requests."""
    began = time.monotonic()
    while True:
        watch.request("GET", "/metrics")
        now = plain_samples(watch.getresponse().read().decode())[RUNNING]
        passed = time.monotonic() - began
        if now == running:
            return passed
        assert passed < GIVE_UP, f"{now} requests run, not {running}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--url")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = args.url or stack.enter_context(served("--max-context", "4096")).url
        found = measure(url, args.times)
    figures: dict[str, Any] = {}
    for name, streamed in (("streamed", True), ("whole", False)):
        times = [entry["ms"] for entry in found if entry["streamed"] is streamed]
        figures[name] = {"p50": statistics.median(times), "max": max(times)}
    p99 = percentile([entry["ms"] for entry in found], 0.99)
    report = {"accept": "http_disconnect", **vars(args), "p99_ms": p99, "ms": figures}
    print_report({**report, "limit_ms": LIMIT_MS}, p99 <= LIMIT_MS)


if __name__ == "__main__":
    main()
