"""What serving costs the decode rounds: streams read in the engine's process, from another one, and
over HTTP.

Usage: python bench/serving_cost.py (--fake MS | --model MODEL | --geometry SIZE[:WEIGHTS])
         [--device cpu] [--streams 8] [--tokens 1000] [--prompt 512] [--repeats 2] [--json FILE]

``--fake`` is a model without arithmetic whose rounds wait MS milliseconds, as for a device. Ways:

- ``alone``: in process, nobody reads before the end: the engine by itself;
- ``in_process``: in process, a thread for each stream;
- ``remote``: the engine in a process of its own, a thread for each stream here;
- ``http``: the same behind the server, in SSE streams that a third process reads.

Rounds are those with all streams and nothing else in their cycle. ``period_us`` is a whole round,
``host_us`` the part in which the host worked, both as the engine books them, medians with p90.
``wall_us`` is the time from the first request to the end of the last answer, prompts included, by
rounds, and ``tokens_s`` the tokens of that time; starting the server and its client is in neither.
``cpu_us`` is what this process computed by token, all of its threads: the engine with its readers,
or without an engine, for ``remote`` the readers and for ``http`` the server. ``events`` of
server-sent events were read; fewer than tokens when some came together. ``ratio`` divides the
median period by that of ``in_process`` and of ``alone``; each way runs ``--repeats`` times, in
turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

WAYS = ("alone", "in_process", "remote", "http")
READER = """
import json, socket, sys, threading, time
port, streams, body = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
HEAD = (b"POST /v1/completions HTTP/1.1\\r\\nhost: bench\\r\\nconnection: close\\r\\n"
        b"content-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n")
answers = []
def read(row):
    asked = json.dumps(body | {"prompt": [token + row for token in body["prompt"]]}).encode()
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(HEAD % len(asked) + asked)
        parts = []
        while part := peer.recv(1 << 16):
            parts.append(part)
    answers.append((time.monotonic(), b"".join(parts)))
threads = [threading.Thread(target=read, args=(row,)) for row in range(streams)]
began = time.monotonic()
for thread in threads: thread.start()
for thread in threads: thread.join()
for _, answer in answers:
    if not answer.startswith(b"HTTP/1.1 200 ") or b"data: [DONE]" not in answer:
        sys.exit(answer[-500:].decode(errors="replace"))
if len(answers) < streams:
    sys.exit("a stream broke")
print(max(ended for ended, _ in answers) - began, sum(one.count(b"data: {") for _, one in answers))
"""


def open_engine(asked: argparse.Namespace, *, remote: bool) -> Any:
    from ninfer_core import Engine, RemoteEngine
    from ninfer_core.contract.engine import EngineOptions

    context = asked.prompt + asked.tokens + 16
    options = EngineOptions(
        devices=(asked.device,),
        max_concurrency=asked.streams,
        max_context=context,
        cache_policy="off",
        queue_timeout=None,
    )
    if asked.fake is None:
        source = f"geometry:{asked.geometry}" if asked.geometry else asked.model
        return (RemoteEngine if remote else Engine).open(source, options)
    from ninfer_core.testing.fake_remote import FakeStart, fake_plan, open_locally

    start = FakeStart(
        max_context=context, max_concurrency=asked.streams, round_seconds=asked.fake / 1000
    )
    if remote:
        return RemoteEngine(fake_plan(start), options)
    return Engine(partial(open_locally, start), options)


def prompt_of(asked: argparse.Namespace, row: int) -> tuple[int, ...]:
    return tuple(4 + (31 * place) % 50 + row for place in range(asked.prompt))


@dataclass(frozen=True)
class Read:
    """One run as its reader saw it, in seconds."""

    wall: float
    cpu: float
    events: int | None = None


def read_here(engine: Any, asked: argparse.Namespace, *, streaming: bool = True) -> Read:
    """Every stream to its end, each on a thread of its own."""
    from ninfer_core.contract.requests import ConsumerMode, GenerationOptions, PromptInput
    from ninfer_core.contract.sampling import SamplingParams

    options = GenerationOptions(
        sampling=SamplingParams(temperature=0.0),
        max_new_tokens=asked.tokens,
        ignore_eos=True,
        consumer=ConsumerMode.STREAMING if streaming else ConsumerMode.AGGREGATE,
    )
    prompts = [PromptInput(token_ids=prompt_of(asked, row)) for row in range(asked.streams)]
    started, computed = time.perf_counter(), time.process_time()
    handles = [engine.submit(prompt, options) for prompt in prompts]
    threads = [threading.Thread(target=handle.result) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Read(time.perf_counter() - started, time.process_time() - computed)


def read_over_http(engine: Any, asked: argparse.Namespace) -> Read:
    """The same through the server, here, and a client process."""
    fields = {
        "model": engine.load_summary().name,
        "prompt": prompt_of(asked, 0),
        "max_tokens": asked.tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
    }
    with served(engine) as port:
        command = [sys.executable, "-c", READER, str(port), str(asked.streams), json.dumps(fields)]
        computed = time.process_time()
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
        computed = time.process_time() - computed
    return Read(float(said[0]), computed, int(said[1]))


@contextmanager
def served(engine: Any) -> Iterator[int]:
    from ninfer_gateway_http.app import create_app
    from ninfer_gateway_http.server import Server, listen
    from ninfer_gateway_http.settings import ServerSettings

    ready = threading.Event()
    server = Server(create_app(engine, ServerSettings(drain=0.0)), ready.set)
    with listen("127.0.0.1", 0) as sock:
        thread = threading.Thread(target=server.serve_on, args=(sock,))
        thread.start()
        ready.wait(30)
        try:
            yield sock.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def measure(way: str, asked: argparse.Namespace) -> dict[str, Any]:
    """One engine, opened for this, warmed by a short run, then measured once."""
    read: Callable[[Any, argparse.Namespace], Read] = read_here
    if way == "alone":
        read = partial(read_here, streaming=False)
    elif way == "http":
        read = read_over_http
    with open_engine(asked, remote=way in ("remote", "http")) as engine:
        short = argparse.Namespace(**(vars(asked) | {"tokens": 16}))
        read_here(engine, short)
        seen, before = len(engine.round_timings()), engine.stats()
        seen_by_reader = read(engine, asked)
        after = engine.stats()
        timings = engine.round_timings()
    timings = timings[seen:] if len(timings) < 4096 else timings
    full = [one for one in timings if one.rows == asked.streams and one.alone]
    if not full:
        raise SystemExit(f"{way}: no round had all {asked.streams} streams: give more --tokens")
    periods = sorted(one.host + one.wait for one in full)
    hosts = sorted(one.host for one in full)
    rounds = after.decode_rounds - before.decode_rounds
    tokens = after.generated_tokens - before.generated_tokens
    return {
        "way": way,
        "rounds": len(full),
        "period_us": round(statistics.median(periods), 1),
        "period_us_p90": round(periods[len(periods) * 9 // 10], 1),
        "host_us": round(statistics.median(hosts), 1),
        "host_us_p90": round(hosts[len(hosts) * 9 // 10], 1),
        "wall_us": round(seen_by_reader.wall / rounds * 1e6, 1),
        "tokens_s": round(tokens / seen_by_reader.wall),
        "cpu_us": round(seen_by_reader.cpu / tokens * 1e6, 1),
        "events": seen_by_reader.events,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--fake", type=float, metavar="MS")
    source.add_argument("--model")
    source.add_argument("--geometry", metavar="SIZE[:WEIGHTS]")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()

    ways = asked.ways.split(",")
    runs = []
    for _ in range(asked.repeats):
        for way in ways:
            runs.append(measure(way, asked))
            print(runs[-1], flush=True)
    periods = {
        way: statistics.median(run["period_us"] for run in runs if run["way"] == way)
        for way in ways
    }
    ratio = {
        f"{way}/{base}": round(periods[way] / periods[base], 4)
        for base in ("alone", "in_process")
        if base in periods
        for way in ways
        if way != base
    }
    print(ratio)
    if asked.json:
        conditions = {name: value for name, value in vars(asked).items() if name != "json"}
        report = {"conditions": conditions, "runs": runs, "period_us": periods, "ratio": ratio}
        asked.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
