"""The same requests alone and among seven others give the same tokens and log-probabilities."""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from _stage import Facts, Stage
from determinism import Request, requests, together
from gpu_answers import KV_FORMATS

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams

GEOMETRIES = ("geometry:0.8b", "geometry:0.8b:fp8", "geometry:0.8b:q4")
GEOMETRY_REQUESTS, GEOMETRY_TOKENS = 200, 32
WITH_LOGPROBS = 20
LONGEST = 600


def invariance_steps(
    stage: Stage, asked: argparse.Namespace, artifacts: Mapping[str, Path]
) -> None:
    """``artifacts`` are of the demo model, by recipe."""
    count = 16 if asked.tiny else asked.requests
    demo = partial(_demo, count, asked.seed)
    for recipe, path in artifacts.items():
        run = partial(compare, path, asked.device, demo, asked.seed)
        stage.run(f"invariance, demo {recipe}", run)
    if asked.device != "cpu":
        some = partial(_demo, count // 4, asked.seed)
        for kv in KV_FORMATS:
            run = partial(compare, artifacts["bf16"], asked.device, some, asked.seed, kv)
            stage.run(f"invariance, demo, kv {kv}", run)
    for model in () if asked.tiny else GEOMETRIES:
        run = partial(compare, model, asked.device, _random_prompts, asked.seed)
        stage.run(f"invariance, {model}", run)


def compare(model: str | Path, device: str, make: Any, seed: int, kv: str | None = None) -> Facts:
    """``make`` gives the requests for a vocabulary. The second time they come eight at once, in
    another order."""
    options = EngineOptions(
        devices=(device,), max_concurrency=8, max_pending=64, max_context=4096,
        queue_timeout=None, kv_format=kv, cache_policy="off",
    )  # fmt: skip
    with Engine.open(model, options) as engine:
        asked = make(engine.load_summary().vocab_size)
        alone = [_evidence(engine.submit(*request).result()) for request in asked]
        order = list(range(len(asked)))
        random.Random(seed).shuffle(order)
        among = together(engine, asked, order)
        again = [_evidence(engine.submit(*request).result()) for request in asked[:8]]
    tokens = [i for i in order if among[i][0] != alone[i][0]]
    logprobs = [i for i in order if i not in tokens and among[i][1] != alone[i][1]]
    return {
        "requests": len(asked),
        "greedy": sum(request[1].sampling.greedy for request in asked),
        "with_logprobs": sum(request[1].logprobs is not None for request in asked),
        "unequal_tokens": len(tokens),
        "unequal_logprobs": len(logprobs),
        "unequal_again": sum(a != b for a, b in zip(again, alone, strict=False)),
        "first_unequal": sorted(tokens)[:10],
        "passed": not tokens and not logprobs and again == alone[:8],
    }


def _evidence(result: Any) -> tuple[Any, ...]:
    return result.token_ids, result.logprobs


def _demo(count: int, seed: int, vocabulary: int) -> list[Request]:
    """Those of ``determinism.py``; log-probabilities are asked of a few alone, so that most run
    as they would be served."""
    return [
        (prompt, options if index < WITH_LOGPROBS else replace(options, logprobs=None))
        for index, (prompt, options) in enumerate(requests(count, seed))
    ]


def _random_prompts(vocabulary: int) -> Sequence[Request]:
    rng = random.Random(5)
    made = []
    for index in range(GEOMETRY_REQUESTS):
        ids = [rng.randrange(vocabulary) for _ in range(rng.randrange(1, LONGEST))]
        sampling = SamplingParams(temperature=0.0)
        if index % 2:
            sampling = SamplingParams(temperature=1.0, top_p=0.9, seed=index)
        options = GenerationOptions(
            sampling=sampling,
            max_new_tokens=GEOMETRY_TOKENS,
            ignore_eos=True,
            logprobs=5 if index < WITH_LOGPROBS else None,
        )
        made.append((PromptInput(token_ids=ids), options))
    return made
