"""The context cache of the installed `ninfer` over the demo model: what the commands say of it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

NINFER = str(Path(sys.executable).with_name("ninfer"))
FLAGS = ["demo", "--device", "cpu", "--cache", "reuse", "--cache-slots", "8"]
LONG = " ".join(f"Box {number} holds {number + 3} parts." for number in range(10, 30))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server that keeps contexts."""
    command = [NINFER, "serve", *FLAGS, "--port", "0", "--max-concurrency", "2"]
    process = subprocess.Popen(
        [*command, "--host-memory", "16MiB"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    found = ""
    while not found:
        line = process.stderr.readline()
        assert line, "the server ended"
        found = line.split()[2] if line.startswith("ninfer: url: ") else ""
    yield found
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


def completion(url: str, **fields: object) -> dict:
    body = {"messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "hi"}]}
    data = json.dumps({**body, "max_tokens": 4, "temperature": 0, **fields}).encode()
    request = urllib.request.Request(
        f"{url}/chat/completions", data, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_turns_of_a_chat_start_from_each_other():
    done = subprocess.run(
        [NINFER, "chat", *FLAGS, "-v", "--greedy", "--max-new", "4", "--system", LONG],
        input=f"{LONG}\n{LONG}\n{LONG}\n", capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.findall(r"cached (\d+) of (\d+) tokens \((\w+)\)", done.stderr)
    first, *later = [(int(cached), int(prompt), reason) for cached, prompt, reason in found]
    assert (first[0], first[2]) == (0, "no_match")
    assert len(later) == 2
    for (_, before, _), (cached, prompt, reason) in zip([first, *later], later, strict=False):
        # all of the last question, but not the marks that open an answer
        assert before - 16 < cached < prompt
        assert reason == "private_checkpoint"


def test_a_server_reports_what_was_cached(url):
    first = completion(url, cache_salt="twice")
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    again = completion(url, cache_salt="twice")
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert len(LONG.split()) < cached < again["usage"]["prompt_tokens"]
    assert again["choices"] == first["choices"]
    assert again["timings"]["reuse_reason"].endswith("_checkpoint")


def test_another_salt_shares_nothing(url):
    completion(url, cache_salt="one")
    other = completion(url, cache_salt="another")
    assert other["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
