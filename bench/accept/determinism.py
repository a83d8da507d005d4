"""The same request alone and among seven others, in several arrival orders: equal to the bit.

Usage: python bench/accept/determinism.py [--requests 200] [--orders 3] [--seed 0]

Half of the requests are greedy, half are seeded draws with penalties. Tokens, their
log-probabilities and those of the likeliest alternatives must be equal. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from typing import Any

from _setting import open_demo, print_report
from accuracy import prompt_of

from ninfer_core.contract.events import GenerationResult
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_demo_model.tasks import EXTRA, FAMILIES, draw

Request = tuple[PromptInput, GenerationOptions]


def requests(count: int, seed: int) -> list[Request]:
    """Prompts of many lengths; every second one is sampled."""
    rng = random.Random(seed)
    families = [name for name in (*FAMILIES, *EXTRA) if name != "recall_long"]
    return [
        (prompt_of(draw(families[i % len(families)], rng, "any")), options(i, rng))
        for i in range(count)
    ]


def options(index: int, rng: random.Random) -> GenerationOptions:
    sampling = SamplingParams(temperature=0.0)
    if index % 2:
        sampling = SamplingParams(
            temperature=rng.uniform(0.5, 1.5),
            top_p=rng.choice([1.0, 0.9]),
            top_k=rng.choice([0, 20]),
            presence_penalty=rng.choice([0.0, 1.0]),
            seed=rng.getrandbits(64),
        )
    length = rng.randrange(4, 24)
    return GenerationOptions(sampling=sampling, max_new_tokens=length, ignore_eos=True, logprobs=5)


def evidence(result: GenerationResult) -> tuple[Any, ...]:
    return result.token_ids, result.logprobs


def alone(engine: Any, asked: Sequence[Request]) -> list[tuple[Any, ...]]:
    return [evidence(engine.submit(*request).result()) for request in asked]


def together(engine: Any, asked: Sequence[Request], order: Sequence[int]) -> dict[int, Any]:
    """Eight requests at a time, arriving in ``order``."""
    found: dict[int, Any] = {}
    for batch in _batches(order, 8):
        handles = {index: engine.submit(*asked[index]) for index in batch}
        found.update({index: evidence(handle.result()) for index, handle in handles.items()})
    return found


def _batches(order: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (order[start : start + size] for start in range(0, len(order), size))


def unequal(count: int, orders: int, seed: int) -> list[dict[str, int]]:
    asked = requests(count, seed)
    with open_demo() as engine:
        expected = alone(engine, asked)
        differing = []
        for trial in range(orders):
            order = list(range(count))
            random.Random(seed + trial).shuffle(order)
            found = together(engine, asked, order)
            differing += [
                {"order": trial, "request": index}
                for index in range(count)
                if found[index] != expected[index]
            ]
    return differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    differing = unequal(args.requests, args.orders, args.seed)
    report = {"accept": "determinism", **vars(args), "unequal": differing}
    print_report(report, not differing)


if __name__ == "__main__":
    main()
