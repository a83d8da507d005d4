"""What a large or costly request makes others wait: none holds the server up for long.

Usage: python bench/accept/http_blocking.py [--limit 0.1] [--cases WORD]

Asks `ninfer serve` of the demo model for /health every few milliseconds, beside one costly request
after the other. ``slowest`` is the longest wait for an answer, ``held`` the longest that the
gateway's process was busy in such a wait: what other processes take of the machine counts in the
former alone. The line holds if no request holds the server up for more than ``--limit`` seconds.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from _server import served
from _setting import print_report

MEBI = 1 << 20
CHAT, TEXT, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
QUIET_SECONDS = 3.0
PAUSE = 0.005


def _talk(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 1}


CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "one word of 10 MB": (CHAT, lambda: _talk("x" * 10 * MEBI)),
    "words of 10 MB": (CHAT, lambda: _talk("one two " * (10 * MEBI // 8))),
    "digits of 10 MB": (TEXT, lambda: {"prompt": "1 " * 5 * MEBI}),
    "spaces of 10 MB": (TEXT, lambda: {"prompt": " " * 10 * MEBI}),
    "10 MB of a script without spaces": (CHAT, lambda: _talk("日本" * (5 * MEBI // 3))),
    "tokens of a word of 1 MB": (TOKENIZE, lambda: {"prompt": "x" * MEBI}),
    "tokens of 1 MB, spelled": (
        TOKENIZE,
        lambda: {"prompt": "one two " * (MEBI // 8), "return_token_strs": True},
    ),
    "a million ids": (TEXT, lambda: {"prompt": [1] * 1_000_000}),
    "a million ids to join": ("/detokenize", lambda: {"tokens": [5] * 1_000_000}),
    "a million nulls": (TEXT, lambda: {"prompt": [None] * 1_000_000}),
    "ten million nulls": (TEXT, lambda: {"prompt": [None] * 10_000_000}),
    "100,000 messages": (CHAT, lambda: {"messages": _talk("a")["messages"] * 100_000}),
    "100,000 messages to count": (
        "/v1/messages/count_tokens",
        lambda: {"model": "demo", "messages": _talk("a")["messages"] * 100_000},
    ),
    "1,000 tools": (CHAT, lambda: {**_talk("a"), "tools": [_tool(n) for n in range(1000)]}),
    "200 tools": (CHAT, lambda: {**_talk("a"), "tools": [_tool(n) for n in range(200)]}),
    "10,000 messages": (CHAT, lambda: {"messages": _talk("a")["messages"] * 10_000}),
    "10,000 messages to count": (
        "/v1/messages/count_tokens",
        lambda: {"model": "demo", "messages": _talk("a")["messages"] * 10_000},
    ),
    "10,000 items": ("/v1/responses", lambda: {"input": _talk("a")["messages"] * 10_000}),
}


def _tool(number: int) -> dict[str, Any]:
    properties = {f"p{n}": {"type": "string", "enum": ["a", "b"]} for n in range(20)}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": f"f{number}", "parameters": parameters}}


@dataclass
class Watch:
    """The longest waits for /health since :meth:`worst` was asked last, in seconds."""

    url: str
    pid: int
    slowest: float = 0.0
    held: float = 0.0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        clock = process_clock(self.pid)
        while not self.over.wait(PAUSE):
            began, busy = time.monotonic(), time.clock_gettime(clock)
            with urllib.request.urlopen(f"{self.url}/health", timeout=120) as reply:
                reply.read()
            took = time.monotonic() - began
            self.slowest = max(self.slowest, took)
            self.held = max(self.held, min(took, time.clock_gettime(clock) - busy))

    def worst(self) -> dict[str, float]:
        found = {"slowest": self.slowest, "held": self.held}
        self.slowest = self.held = 0.0
        return found


def process_clock(pid: int) -> int:
    """The clock of the time that all threads of ``pid`` together have run (clock_getcpuclockid)."""
    return (~pid << 3) | 2


def ask(url: str, path: str, body: bytes) -> int:
    request = urllib.request.Request(url + path, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            reply.read()
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def measure(url: str, pid: int, word: str) -> list[dict[str, Any]]:
    """One entry per case whose name has ``word`` in it, the quiet while first."""
    watch = Watch(url, pid)
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        time.sleep(QUIET_SECONDS)
        found: list[dict[str, Any]] = [{"case": "nothing", **watch.worst()}]
        for name, (path, make) in CASES.items():
            if word in name:
                body = json.dumps(make(), ensure_ascii=False).encode()
                watch.worst()
                began = time.monotonic()
                status = ask(url, path, body)
                took = time.monotonic() - began
                found.append({"case": name, "status": status, "took": took, **watch.worst()})
    finally:
        watch.over.set()
        thread.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=0.1)
    parser.add_argument("--cases", default="")
    args = parser.parse_args()
    with served("--max-context", "8192") as server:
        found = measure(server.url, server.pids[0], args.cases)
    late = [one["case"] for one in found if one["held"] > args.limit]
    report = {"accept": "http_blocking", **vars(args), "cases": found, "late": late}
    print_report(report, not late)


if __name__ == "__main__":
    main()
