"""Many clients that come and go: nothing is lost or doubled, and everything is given back.

Usage: python bench/accept/http_soak.py [--seconds 300] [--clients 64] [--seed 0]

A `ninfer serve` of the demo model with 4 places and 16 waiting ones is asked by many more clients
at once, streaming or not, on two routes; a third of them leave at a random moment. Each answer that
is read to its end must be the one that the same request got when it was alone, with the request's
own identifier, one end and the usage that belongs to it. A refusal must be a 429 that says when to
come back. Meanwhile no more than 4 requests may run and 16 wait; afterwards no request, page or
slot may be held, and the engine must have ended as many requests as it accepted. The memory of
neither process may differ by more than 2 % between second 60 and the end, so that a run of less
than 90 seconds cannot pass. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from _server import Served, served
from _setting import print_report

PLACES, WAITING = 4, 16
SETTLED_AFTER = 60.0
TOLERANCE = 0.02
QUESTIONS = ("What is 17 + 25?", "Sort: 9, 2, 5", "Reverse: a, b, c, d", "Copy: 4, 7, 1, 8")
START = (
    *("--max-concurrency", str(PLACES), "--max-pending-requests", str(WAITING)),
    *("--cache", "off", "--max-context", "512"),
)

Json = dict[str, Any]


@dataclass
class Tally:
    """What happened; ``wrong`` describes what must not."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    most_running: int = 0
    most_waiting: int = 0
    resident: list[tuple[float, list[int]]] = field(default_factory=list)


async def soak(server: Served, clients: int, seconds: float, seed: int) -> Tally:
    """Ask ``server`` for so long; returns when the last client is done."""
    tally = Tally()
    cases = [case for number in range(8) if (case := await _case(server, number))]
    until = time.monotonic() + seconds
    watching = asyncio.create_task(_watch(server, tally, time.monotonic()))
    rngs = [random.Random(f"{seed}/{number}") for number in range(clients)]
    await asyncio.gather(*(_client(server, rng, cases, until, tally) for rng in rngs))
    watching.cancel()
    return tally


def returned(server: Served, tally: Tally) -> Json:
    """What the engine holds once it is quiet; what is not as it should be goes to the tally."""
    for _ in range(200):
        end = server.metrics()
        if not end["ninfer_requests_open"] and not end["vllm:num_requests_running"]:
            break
        time.sleep(0.05)
    names = (
        *("vllm:num_requests_running", "vllm:num_requests_waiting", "ninfer_requests_paused"),
        *("ninfer_requests_open", "vllm:kv_cache_usage_perc"),
    )
    left = {name: end[name] for name in names}
    left["state_slots"] = end["ninfer_state_slots"] - end["ninfer_state_slots_free"]
    left["unended"] = end["ninfer_submitted_total"] - end["ended"]
    tally.wrong += [f"{name} is {value} at the end" for name, value in left.items() if value]
    if tally.most_running > PLACES or tally.most_waiting > WAITING:
        tally.wrong.append(f"{tally.most_running} ran, {tally.most_waiting} waited")
    return left


def growth(tally: Tally) -> list[float] | None:
    """By how much the memory of each process changed since it settled; None before it did."""
    last = tally.resident[-1][0]
    if last < SETTLED_AFTER + 30:
        return None
    early = _mean(tally, SETTLED_AFTER, SETTLED_AFTER + 15)
    late = _mean(tally, last - 15, last)
    return [after / before - 1 for before, after in zip(early, late, strict=True)]


async def _case(server: Served, number: int) -> tuple[str, Json, str, Json]:
    """A request, and the text and usage that it gets alone."""
    question = QUESTIONS[number % 4]
    body: Json = {"temperature": 0, "max_tokens": 24}
    if number < 4:
        path = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": question}]
    else:
        path, body["prompt"] = "/v1/completions", question
        body["ignore_eos"] = True
    status, _, data = await _ask(server, path, body, "alone")
    assert status == 200, data
    reply = json.loads(data)
    return path, body, _text(reply["choices"][0]), _usage(reply)


async def _client(
    server: Served,
    rng: random.Random,
    cases: list[tuple[str, Json, str, Json]],
    until: float,
    tally: Tally,
) -> None:
    while time.monotonic() < until:
        path, body, text, usage = rng.choice(cases)
        streamed = rng.random() < 0.6
        asked = body | (
            {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
        )
        name = f"soak-{rng.getrandbits(64):x}"
        stay = rng.expovariate(2.0) if rng.random() < 0.35 else None
        try:
            async with asyncio.timeout(stay if stay is not None else 120):
                status, headers, data = await _ask(server, path, asked, name)
        except TimeoutError:
            tally.counts["left" if stay is not None else "hung"] += 1
            if stay is None:
                tally.wrong.append(f"{name} was not answered in two minutes")
            continue
        except (OSError, asyncio.IncompleteReadError) as error:
            tally.wrong.append(f"{name}: {error!r}")
            continue
        tally.counts[str(status)] += 1
        try:
            tally.wrong += _problems(status, headers, data, streamed, name, text, usage)
        except (AssertionError, ValueError, LookupError) as error:
            tally.wrong.append(f"{name}: {error!r}")
        if status == 429:
            await asyncio.sleep(rng.uniform(0.1, float(headers.get("retry-after", "1"))))


def _problems(
    status: int,
    headers: dict[str, str],
    data: bytes,
    streamed: bool,
    name: str,
    text: str,
    usage: Json,
) -> list[str]:
    if headers.get("x-request-id") != name:
        return [f"{name} got the reply of {headers.get('x-request-id')}"]
    if status == 429:
        return [] if "retry-after" in headers else [f"{name}: a 429 without Retry-After"]
    if status != 200:
        return [f"{name}: {status} {data[:200]!r}"]
    got = _joined(data) if streamed else json.loads(data)
    choice = got["choices"][0]
    found = [_text(choice), _usage(got), bool(choice["finish_reason"])]
    return [] if found == [text, usage, True] else [f"{name}: {found} is not {[text, usage]}"]


def _joined(data: bytes) -> Json:
    """The events of a stream as one reply. Raises AssertionError when its end is not the end."""
    *events, rest = data.decode().split("\n\n")
    assert rest == "", data[-200:]
    chunks = [event.removeprefix("data: ") for event in events if event.startswith("data: ")]
    assert chunks.count("[DONE]") == 1, chunks[-3:]
    assert chunks.pop() == "[DONE]", data[-200:]
    text, finish, usage = "", [], []
    for chunk in map(json.loads, chunks):
        usage += [chunk["usage"]] if chunk.get("usage") else []
        for choice in chunk["choices"]:
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            finish += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert len(finish) == len(usage) == 1, (finish, usage)
    return {"choices": [{"text": text, "finish_reason": finish[0]}], "usage": usage[0]}


async def _ask(
    server: Served, path: str, body: Json, name: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one reply; cancelling closes the connection."""
    reader, writer = await asyncio.open_connection(*server.address)
    try:
        data = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.0", "host: x", "content-type: application/json"]
        lines += [f"content-length: {len(data)}", f"x-request-id: {name}", "", ""]
        writer.write("\r\n".join(lines).encode() + data)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        return int(head[0].split()[1]), headers, await reader.read()
    finally:
        writer.close()


async def _watch(server: Served, tally: Tally, began: float) -> None:
    while True:
        now = await asyncio.to_thread(server.metrics)
        tally.most_running = max(tally.most_running, int(now["vllm:num_requests_running"]))
        tally.most_waiting = max(tally.most_waiting, int(now["vllm:num_requests_waiting"]))
        tally.resident.append((time.monotonic() - began, server.resident_bytes()))
        await asyncio.sleep(0.5)


def _text(choice: Json) -> str:
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return text or ""


def _usage(reply: Json) -> Json:
    return {name: reply["usage"][name] for name in ("prompt_tokens", "completion_tokens")}


def _mean(tally: Tally, begin: float, end: float) -> list[float]:
    """The mean memory of each process in a span of time."""
    sizes = [sizes for moment, sizes in tally.resident if begin <= moment <= end]
    return [sum(column) / len(sizes) for column in zip(*sizes, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with served(*START) as server:
        tally = asyncio.run(soak(server, args.clients, args.seconds, args.seed))
        left = returned(server, tally)
    grown = growth(tally)
    flat = grown is not None and all(abs(share) <= TOLERANCE for share in grown)
    report = {
        "accept": "http_soak",
        **vars(args),
        "counts": dict(tally.counts),
        "most_running": tally.most_running,
        "most_waiting": tally.most_waiting,
        "left": left,
        "resident_growth": dict(zip(("gateway", "engine"), grown, strict=True)) if grown else None,
        "resident_bytes": tally.resident[-1][1],
        "wrong": tally.wrong[:20],
    }
    print_report(report, flat and not tally.wrong and tally.counts["200"] > 0)


if __name__ == "__main__":
    main()
