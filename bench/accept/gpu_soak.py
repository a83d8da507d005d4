"""Stage `soak`: mixed traffic that leaves nothing behind, and an engine that loses its device."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from _stage import Facts, Stage, outcome_of

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions, MemorySummary
from ninfer_core.contract.errors import RequestError
from ninfer_core.contract.events import Delta
from ninfer_core.contract.requests import CacheMode, CacheRequest, GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams

OUTSTANDING = 12
"""Requests kept inside: more than run at once, so that some always wait."""

LOSS = Path(__file__).with_name("_lose_device.py")


def steps(stage: Stage, asked: argparse.Namespace) -> None:
    seconds = 3.0 if asked.tiny else asked.soak_seconds
    stage.run("traffic", partial(traffic, stage, asked.model, asked.device, seconds, asked.seed))
    stage.run("device lost", partial(device_lost, asked.device))


def traffic(stage: Stage, model: str, device: str, seconds: float, seed: int) -> Facts:
    """Requests of random kinds for ``seconds``. Passes when none failed, everything came back, and
    the device's counters stand where they stood."""
    options = EngineOptions(
        devices=(device,),
        max_concurrency=8,
        max_pending=64,
        max_context=2048,
        cache_policy="off",
        queue_timeout=None,
    )
    rng, ends = random.Random(seed), Counter[str]()
    with Engine.open(model, options) as engine:
        vocabulary = engine.load_summary().vocab_size
        before = engine.memory_summary()
        handles: list[Any] = []
        until, told, tokens = time.monotonic() + seconds, time.monotonic(), 0
        while time.monotonic() < until or handles:
            while len(handles) < OUTSTANDING and time.monotonic() < until:
                handles.append(_submit(engine, rng, vocabulary))
            tokens += _consume(handles.pop(rng.randrange(len(handles))), rng, ends)
            if time.monotonic() - told > 10:
                told = time.monotonic()
                stage.say(f"{sum(ends.values())} requests, {tokens} tokens")
        quiet = engine.drain(60)
        after, stats = engine.memory_summary(), engine.stats()
    counters = [_counters(memory) for memory in (before, after)]
    return {
        "requests": sum(ends.values()),
        "tokens": tokens,
        "ends": dict(ends),
        "failed": dict(stats.failed),
        "pauses": stats.pauses,
        "rows_by_batch": {str(rows): n for rows, n in sorted(stats.rows_by_batch.items())},
        "counters_before": counters[0],
        "counters_after": counters[1],
        "all_pages_back": after.pages_free == after.pages_total == before.pages_free,
        "all_slots_back": after.state_slots_free == after.state_slots_total,
        "passed": quiet
        and not stats.failed
        and counters[0] == counters[1]
        and after.pages_free == after.pages_total
        and after.state_slots_free == after.state_slots_total,
    }


def _submit(engine: Engine, rng: random.Random, vocabulary: int) -> Any:
    longest = rng.choice([8, 64, 300, 1500])
    prompt = [rng.randrange(vocabulary) for _ in range(rng.randrange(1, longest))]
    greedy = rng.random() < 0.4
    sampling = SamplingParams(temperature=0.0)
    if not greedy:
        sampling = SamplingParams(
            temperature=rng.uniform(0.3, 1.5),
            top_k=rng.choice([0, 1, 20, 50]),
            top_p=rng.choice([1.0, 0.95, 0.5]),
            min_p=rng.choice([0.0, 0.05]),
            presence_penalty=rng.choice([0.0, 1.0]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            logit_bias={rng.randrange(vocabulary): 5.0} if rng.random() < 0.2 else {},
            seed=rng.getrandbits(64),
        )
    options = GenerationOptions(
        sampling=sampling,
        max_new_tokens=rng.choice([1, 2, 17, 60, 200]),
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=tuple(rng.randrange(vocabulary) for _ in range(rng.choice([0, 0, 4]))),
        stop=("7",) if rng.random() < 0.2 else (),
        logprobs=rng.choice([None, None, None, 0, 5]),
        prompt_logprobs=rng.choice([None] * 9 + [1]),
    )
    cache = CacheRequest(mode=rng.choice(list(CacheMode)))
    return engine.submit(PromptInput(token_ids=prompt, cache=cache), options)


def _consume(handle: Any, rng: random.Random, ends: Counter[str]) -> int:
    """Read to the end, or cancel on the way, or let go; returns the tokens that were seen."""
    manner, seen = rng.random(), 0
    with handle:
        if manner < 0.1:
            ends["let go"] += 1
            return 0
        for event in handle:
            seen += len(event.token_ids) if isinstance(event, Delta) else 0
            if manner < 0.3 and seen > 3:
                handle.cancel()
        try:
            ends[handle.result().finish_reason.value] += 1
        except RequestError as error:
            ends[error.code] += 1
    return seen


def _counters(memory: MemorySummary) -> dict[str, Any]:
    return {
        use.name: [use.arenas, use.takes, use.graphs, use.allocations] for use in memory.devices
    }


def device_lost(device: str) -> Facts:
    """A kernel traps in a process of its own: every response ends, and so does the process."""
    code, text = outcome_of([sys.executable, "-X", "faulthandler", str(LOSS), device], 180)
    lines = [line for line in text.splitlines() if line.startswith("{")]
    found: Facts = json.loads(lines[-1]) if lines else {"output": text[-2000:]}
    if code:
        found["output"] = text[-4000:]
    return {"exit_code": code} | found | {"passed": code == 0 and bool(found.get("passed"))}
