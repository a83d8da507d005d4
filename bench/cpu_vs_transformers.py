"""Tokens per second of the demo model on this CPU, against transformers' generate with cache.

Usage: python bench/cpu_vs_transformers.py [--tokens 256] [--rounds 5] [-o FILE]

Same prompts, same number of new tokens, greedy, float32. Each side has a process of its own, since
two thread pools in one would slow each other; they take turns in every round, and medians count.
Targets: 1.5 times theirs at one request and at eight, and with eight 4 times theirs at one. Prints
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "accept"))

from _setting import conditions, open_demo

PROMPT_TOKENS = 64
TARGETS = {"ours_1 / theirs_1": 1.5, "ours_8 / theirs_8": 1.5, "ours_8 / theirs_1": 4.0}
Run = Callable[[Sequence[Sequence[int]], int], None]


def prompts(count: int) -> list[list[int]]:
    """Equal lengths, so that neither side pads."""
    rng = random.Random(0)
    return [[rng.randrange(300, 1500) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def ours(engine: Any) -> Run:
    from ninfer_core.contract.requests import ConsumerMode, GenerationOptions, PromptInput
    from ninfer_core.contract.sampling import SamplingParams

    def run(ids: Sequence[Sequence[int]], tokens: int) -> None:
        options = GenerationOptions(
            sampling=SamplingParams(temperature=0.0),
            max_new_tokens=tokens,
            ignore_eos=True,
            consumer=ConsumerMode.AGGREGATE,
        )
        handles = [engine.submit(PromptInput(token_ids=row), options) for row in ids]
        assert all(len(handle.result().token_ids) == tokens for handle in handles)

    return run


def theirs() -> Run:
    import torch
    from greedy_parity import oracle_model

    model = oracle_model()

    def run(ids: Sequence[Sequence[int]], tokens: int) -> None:
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

    return run


def serve(run: Run, tokens: int) -> None:
    """The child: for every number of requests on stdin, its tokens per second on stdout."""
    for line in sys.stdin:
        ids = prompts(int(line))
        started = time.perf_counter()
        run(ids, tokens)
        print(len(ids) * tokens / (time.perf_counter() - started), flush=True)


class Side:
    """One of the two processes."""

    def __init__(self, name: str, tokens: int) -> None:
        command = [sys.executable, __file__, "--side", name, "--tokens", str(tokens)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def rate(self, count: int) -> float:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(count, file=stdin, flush=True)
        return float(stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def measure(tokens: int, rounds: int) -> dict[str, float]:
    """Median tokens per second by side and number of requests, after one round not counted."""
    sides = {name: Side(name, tokens) for name in ("ours", "theirs")}
    rates: dict[str, list[float]] = {}
    for index in range(rounds + 1):
        for count in (1, 8):
            for name, side in sides.items():
                value = side.rate(count)
                if index:
                    rates.setdefault(f"{name}_{count}", []).append(value)
    for side in sides.values():
        side.close()
    return {name: statistics.median(values) for name, values in rates.items()}


def report(tokens: int, rounds: int) -> dict[str, Any]:
    rates = measure(tokens, rounds)
    ratios = {name: rates[name[:6]] / rates[name[9:]] for name in TARGETS}
    return {
        "bench": "cpu_vs_transformers",
        "tokens": tokens,
        "rounds": rounds,
        "prompt_tokens": PROMPT_TOKENS,
        "tokens_per_second": {name: round(value, 1) for name, value in rates.items()},
        "ratios": {name: round(value, 2) for name, value in ratios.items()},
        "targets": TARGETS,
        "passed": all(ratios[name] >= target for name, target in TARGETS.items()),
        "conditions": conditions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--side", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side == "ours":
        with open_demo() as engine:
            serve(ours(engine), args.tokens)
    elif args.side == "theirs":
        serve(theirs(), args.tokens)
    else:
        text = json.dumps(report(args.tokens, args.rounds), indent=2)
        print(text)
        if args.output:
            args.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
