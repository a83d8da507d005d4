"""Tokens per second of the demo model on this CPU, against transformers' generate with cache.

Usage: python bench/cpu_vs_transformers.py [--tokens 96] [--rounds 5] [-o FILE]

Same prompts, same number of new tokens, greedy, both in float32 in one process; the two take turns
in every round and the medians count. Targets: 1.5 times theirs at one request and at eight, and
with eight 4 times theirs at one. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "accept"))

from _setting import conditions, open_demo
from greedy_parity import oracle_model

from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams

PROMPT_TOKENS = 64
TARGETS = {"ours_1 / theirs_1": 1.5, "ours_8 / theirs_8": 1.5, "ours_8 / theirs_1": 4.0}


def prompts(count: int) -> list[list[int]]:
    """Equal lengths, so that neither side pads."""
    rng = random.Random(0)
    return [[rng.randrange(300, 1500) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def ours(engine: Any, ids: Sequence[Sequence[int]], tokens: int) -> None:
    options = GenerationOptions(
        sampling=SamplingParams(temperature=0.0), max_new_tokens=tokens, ignore_eos=True
    )
    handles = [engine.submit(PromptInput(token_ids=row), options) for row in ids]
    assert all(len(handle.result().token_ids) == tokens for handle in handles)


def theirs(model: Any, ids: Sequence[Sequence[int]], tokens: int) -> None:
    with torch.inference_mode():
        made = model.generate(
            torch.tensor(ids),
            attention_mask=torch.ones(len(ids), PROMPT_TOKENS, dtype=torch.long),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
        )
    assert made.shape[1] == PROMPT_TOKENS + tokens


def rate(run: Callable[[], None], tokens: int) -> float:
    started = time.perf_counter()
    run()
    return tokens / (time.perf_counter() - started)


def measure(tokens: int, rounds: int) -> dict[str, float]:
    """Median tokens per second by side and number of requests."""
    model = oracle_model()
    rates: dict[str, list[float]] = {}
    with open_demo() as engine:
        for index in range(rounds + 1):
            for count in (1, 8):
                ids = prompts(count)
                taken = {
                    f"ours_{count}": rate(partial(ours, engine, ids, tokens), count * tokens),
                    f"theirs_{count}": rate(partial(theirs, model, ids, tokens), count * tokens),
                }
                for name, value in taken.items() if index else ():
                    rates.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    rates = measure(args.tokens, args.rounds)
    ratios = {name: rates[name[:6]] / rates[name[9:]] for name in TARGETS}
    report = {
        "bench": "cpu_vs_transformers",
        "tokens": args.tokens,
        "rounds": args.rounds,
        "prompt_tokens": PROMPT_TOKENS,
        "tokens_per_second": {name: round(value, 1) for name, value in rates.items()},
        "ratios": {name: round(value, 2) for name, value in ratios.items()},
        "targets": TARGETS,
        "passed": all(ratios[name] >= target for name, target in TARGETS.items()),
        "conditions": conditions(),
    }
    text = json.dumps(report, indent=2)
    print(text)
    if args.output:
        args.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
