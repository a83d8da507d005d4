"""Chat requests with odd tools, many at once and some broken off, never end in a fault.

Usage: python bench/accept/http_fuzz.py [--requests 2000] [--seed 0] [--clients 6] [--queued]

A reply with status 500 or above, none within 60 seconds, a stream that ends in such an error, a
server that is not ready afterwards, and an engine that still holds room then are faults. With an
even seed the engine keeps no contexts. With ``--queued`` the engine runs on the CPU as it does on a
GPU: rounds are launched ahead of results.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import httpx2 as httpx
from _fuzz_bodies import Body, body
from _server import in_process, log_tail
from _setting import print_report

from ninfer_core.contract.engine import EngineOptions

PATIENCE = 60.0
SHARE_LEFT = 0.15
"""Of the requests, how many are given up by their client."""
_TOLD = 60


class Fuzz:
    """What the clients share: the server's address, what came back, and what was wrong."""

    def __init__(self, url: str, log: Sequence[str]) -> None:
        self.client = httpx.AsyncClient(base_url=url, timeout=PATIENCE)
        self.statuses: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.faults: list[dict[str, Any]] = []
        self._log = log

    async def run(self, requests: int, clients: int, seed: int) -> None:
        rng = random.Random(f"fuzz {seed}")
        bodies = iter([body(rng) for _ in range(requests)])
        async with self.client:
            await asyncio.gather(*(self._ask_all(bodies, rng) for _ in range(clients)))
            ready = await self.client.get("/ready")
            if ready.status_code != 200:
                self._fault({}, f"not ready: {ready.text}")

    async def _ask_all(self, bodies: Iterator[Body], rng: random.Random) -> None:
        for wanted in bodies:
            if len(self.faults) >= 5:
                return
            patience = rng.random() * 0.3 if rng.random() < SHARE_LEFT else PATIENCE
            try:
                status, text = await asyncio.wait_for(self._ask(wanted), patience)
            except TimeoutError:
                status, text = ("none", "") if patience == PATIENCE else ("given up", "")
            except httpx.HTTPError as error:
                status, text = "none", repr(error)
            self.statuses[status] += 1
            if status == "400":
                self.refusals[str(json.loads(text)["error"]["param"]).partition("[")[0]] += 1
            if status == "none" or status.startswith("5"):
                self._fault(wanted, f"{status}: {text}")

    async def _ask(self, wanted: Body) -> tuple[str, str]:
        async with self.client.stream("POST", "/v1/chat/completions", json=wanted) as reply:
            text = (await reply.aread()).decode()
        if reply.status_code == 200 and '"server_error"' in text:
            return "500 in a stream", text
        return str(reply.status_code), text

    def _fault(self, wanted: Body, said: str) -> None:
        told = {"said": said[:2000], "body": json.dumps(wanted), "log": list(self._log)[-_TOLD:]}
        self.faults.append(told)


@contextlib.contextmanager
def queued_on_cpu() -> Iterator[None]:
    """Engines that are opened within queue their units on the CPU, too."""
    from ninfer_core.device.base import LaneRole
    from ninfer_qwen3_5 import build

    def entered(device: Any, opening: ExitStack) -> ExitStack:
        held = opening.enter_context(ExitStack())
        held.enter_context(device.lane(LaneRole.COMPUTE).enter())
        return held

    before, build._entered = build._entered, entered
    try:
        yield
    finally:
        build._entered = before


def fuzz(requests: int, seed: int, clients: int, queued: bool) -> dict[str, Any]:
    """Statuses and faults of so many requests."""
    keeps: Any = {} if seed % 2 else {"cache_policy": "off"}
    options = EngineOptions(
        devices=("cpu",),
        max_concurrency=4,
        max_pending=64,
        max_context=1024,
        queue_timeout=None,
        **keeps,
    )
    with ExitStack() as stack:
        log = stack.enter_context(log_tail())
        if queued:
            stack.enter_context(queued_on_cpu())
        engine, url = stack.enter_context(in_process(options))
        found = Fuzz(url, log)
        asyncio.run(found.run(requests, clients, seed))
        if engine.availability().ready:
            quiet = engine.drain(PATIENCE)
            memory = engine.memory_summary()
            held = bool(keeps) and memory.pages_free != memory.pages_total
            if held or not quiet:
                found._fault({}, f"room is still held: {memory}")
        counts = {"statuses": dict(found.statuses), "refused_for": dict(found.refusals)}
        return {**counts, "faults": found.faults}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--queued", action="store_true")
    args = parser.parse_args()
    began = time.monotonic()
    found = fuzz(args.requests, args.seed, args.clients, args.queued)
    seconds = time.monotonic() - began
    report = {"accept": "http_fuzz", **vars(args), "seconds": seconds, **found}
    print_report(report, not found["faults"])


if __name__ == "__main__":
    main()
