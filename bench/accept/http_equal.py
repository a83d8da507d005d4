"""Streamed and whole answers of one server are equal, for random requests with fixed seeds.

Usage: python bench/accept/http_equal.py [--requests 300] [--seed 0] [--clients 4] [--url URL]

Without --url a `ninfer serve` of the demo model is started. Each request is asked for twice: text,
thought, calls, ends, token ids, log-probabilities and usage must be equal, and every event of the
stream must be UTF-8 and JSON by itself. A call that the limit cut stands in the stream alone.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _setting import print_report

from ninfer_demo_model.tasks import FAMILIES, draw

CLOSE = 1e-3
"""Log-probabilities of a prompt that is read and of one that is cached may differ this much."""
TEXTS = (
    "Say this: 日本語, Größe, 😀🎉",
    "Repeat these words: naïve, façade, 👩‍👩‍👧, हिन्दी",
    "Tell me something.",
)
STOPS = (", ", "a", "\n", "tomato", "42", "😀", "</function>")

Json = dict[str, Any]


def requests(count: int, seed: int) -> list[tuple[str, Json]]:
    """Paths and bodies; half of the chats are drawn from the model's tasks."""
    rng = random.Random(seed)
    return [_completion(rng) if rng.random() < 0.25 else _chat(rng) for _ in range(count)]


def differences(url: str, path: str, body: Json) -> list[str]:
    """In what the two answers to one request differ."""
    whole = json.loads(_post(url + path, body))
    options = {"include_usage": True, "continuous_usage_stats": bool(len(str(body)) % 2)}
    streamed = joined(_post(url + path, {**body, "stream": True, "stream_options": options}))
    expected = _plain(whole)
    return [
        f"{name}: {expected[name]!r} whole, {streamed[name]!r} streamed"
        for name in expected
        if not _same(expected[name], streamed[name])
    ]


def joined(data: bytes) -> Json:
    """What the events of a stream add up to, in the form of :func:`_plain`."""
    *events, rest = data.split(b"\n\n")
    assert not rest, "the stream ends within an event"
    assert events.pop() == b"data: [DONE]", "the stream has no end"
    choices: dict[int, Json] = {}
    usage: Json = {}
    for event in events:
        if event.startswith(b":"):
            continue
        assert event.startswith(b"data: "), event
        chunk = json.loads(event.removeprefix(b"data: ").decode())
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            _add(choices.setdefault(choice["index"], _blank()), choice)
    found = [_without_cut_calls(choices[index]) for index in sorted(choices)]
    return {"choices": found, "usage": _counts(usage)}


def _chat(rng: random.Random) -> tuple[str, Json]:
    case = draw(rng.choice(FAMILIES), rng, "any")
    body: Json = {"messages": list(case.messages), "enable_thinking": case.thinking}
    if case.tools:
        body["tools"] = list(case.tools)
    if rng.random() < 0.25:
        body = {"messages": [{"role": "user", "content": rng.choice(TEXTS)}]}
    if body.get("enable_thinking") and rng.random() < 0.4:
        body["thinking_budget"] = rng.randrange(0, 30)
    if rng.random() < 0.4:
        body |= {"logprobs": True, "top_logprobs": rng.randrange(0, 4)}
    return "/v1/chat/completions", body | _common(rng)


def _completion(rng: random.Random) -> tuple[str, Json]:
    body: Json = {"prompt": rng.choice([*TEXTS, list(TEXTS[:2]), [16, 17, 220, 30]])}
    if rng.random() < 0.5:
        body["logprobs"] = rng.randrange(0, 4)
    elif rng.random() < 0.5:
        body["echo"] = True
    return "/v1/completions", body | _common(rng)


def _common(rng: random.Random) -> Json:
    body: Json = {
        "seed": rng.getrandbits(63),
        "temperature": rng.choice([0, 0.7, 1.5]),
        "max_tokens": rng.randrange(0, 24),
        "return_token_ids": True,
    }
    for name, values in (
        ("n", (2, 3)),
        ("top_p", (0.5, 0.9)),
        ("top_k", (5, 50)),
        ("min_p", (0.05,)),
        ("presence_penalty", (0.5,)),
        ("repetition_penalty", (1.3,)),
        ("ignore_eos", (True,)),
    ):
        if rng.random() < 0.15:
            body[name] = rng.choice(values)
    if rng.random() < 0.4:
        body["stop"] = rng.sample(STOPS, rng.randrange(1, 3))
    return body


def _plain(reply: Json) -> Json:
    choices = []
    for choice in reply["choices"]:
        entry = _blank()
        message = choice.get("message") or {"content": choice["text"]}
        calls = [
            {"index": index, "function": call["function"]}
            for index, call in enumerate(message.get("tool_calls") or ())
        ]
        _add(entry, {**choice, "delta": {**message, "tool_calls": calls}})
        choices.append(entry)
    return {"choices": choices, "usage": _counts(reply["usage"])}


def _blank() -> Json:
    return {"text": "", "thought": "", "calls": {}, "ids": [], "logprobs": [], "end": None}


def _add(entry: Json, choice: Json) -> None:
    """Add one chunk's choice, or a whole one, to what came before."""
    delta = choice.get("delta") or {"content": choice.get("text")}
    entry["text"] += delta.get("content") or ""
    entry["thought"] += delta.get("reasoning_content") or ""
    assert delta.get("reasoning") == delta.get("reasoning_content"), "two thoughts"
    for piece in delta.get("tool_calls") or ():
        call = entry["calls"].setdefault(piece["index"], ["", ""])
        call[0] += piece["function"].get("name") or ""
        call[1] += piece["function"].get("arguments") or ""
    entry["ids"] += choice.get("token_ids") or ()
    entry["logprobs"] += _values(choice.get("logprobs"))
    if choice.get("finish_reason"):
        entry["end"] = [choice["finish_reason"], choice.get("stop_reason")]


def _without_cut_calls(entry: Json) -> Json:
    """An output that a limit ended may end within its last call, whose arguments are no JSON."""
    if entry["end"] and entry["end"][0] == "length" and entry["calls"]:
        _, arguments = entry["calls"][max(entry["calls"])]
        try:
            json.loads(arguments)
        except ValueError:
            del entry["calls"][max(entry["calls"])]
    return entry


def _values(logprobs: Json | None) -> list[float]:
    """The log-probabilities of a choice as numbers alone: chosen ones and alternatives."""
    if logprobs is None:
        return []
    if "content" in logprobs:
        rows = logprobs["content"]
        return [
            v
            for row in rows
            for v in (row["logprob"], *(t["logprob"] for t in row["top_logprobs"]))
        ]
    pairs = zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    return [value for own, top in pairs for value in (own, *top.values())]


def _counts(usage: Json) -> list[int]:
    """Not the cached tokens: the second request may find more than the first."""
    details = usage["completion_tokens_details"]
    return [usage["prompt_tokens"], usage["completion_tokens"], details["reasoning_tokens"]]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return abs(one - other) <= CLOSE
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _post(url: str, body: Json) -> bytes:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=600) as reply:
        data: bytes = reply.read()
    return data


@contextlib.contextmanager
def served(clients: int) -> Iterator[str]:
    """The address of a server of the demo model that ends with the block."""
    ninfer = str(Path(sys.executable).with_name("ninfer"))
    command = [ninfer, "serve", "demo", "--port", "0", "--max-concurrency", str(clients)]
    command += ["--device", "cpu", "--max-pending-requests", "64", "--log-level", "error"]
    # Threads that spin while they wait for each other would starve the clients.
    threads = {"OMP_NUM_THREADS": "1", **os.environ}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=threads)
    assert process.stderr is not None
    try:
        yield next(
            line.split()[2].removesuffix("/v1")
            for line in process.stderr
            if line.startswith("ninfer: url: ")
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def unequal(url: str, count: int, seed: int, clients: int) -> list[Json]:
    """The requests whose two answers differ, with what differs."""
    asked = requests(count, seed)
    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(lambda one: differences(url, *one), asked))
    return [
        {"path": path, "body": body, "differences": list(one)}
        for (path, body), one in zip(asked, found, strict=True)
        if one
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--url")
    args = parser.parse_args()
    server = contextlib.nullcontext(args.url) if args.url else served(args.clients)
    with server as url:
        found = unequal(url, args.requests, args.seed, args.clients)
    print_report({"accept": "http_equal", **vars(args), "differences": found}, not found)


if __name__ == "__main__":
    main()
