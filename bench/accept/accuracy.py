"""Fresh held-out cases of every family of the demo model, answered through the engine.

Usage: python bench/accept/accuracy.py [--cases 100] [--seed N]

The seed comes from the clock unless given. Prints one JSON object with the right answers per family
and some wrong ones, and exits 1 when a family has fewer than 90 % right.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from typing import Any

from _setting import open_demo, print_report

from ninfer_core.contract.events import GenerationResult
from ninfer_core.contract.requests import ChatOptions, GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_demo_model.tasks import FAMILIES, Case, Reply, ToolCall, draw

SHARE = 0.9
SHOWN = 3


def prompt_of(case: Case) -> PromptInput:
    return PromptInput(
        messages=case.messages, tools=case.tools, chat=ChatOptions(thinking=case.thinking)
    )


def reply_of(result: GenerationResult) -> Reply:
    calls = tuple(ToolCall(call.name, json.loads(call.arguments)) for call in result.tool_calls)
    return Reply(text=result.text, reasoning=result.reasoning, tool_calls=calls)


def answer(engine: Any, cases: Sequence[Case]) -> list[GenerationResult]:
    """Greedy answers to all cases, eight at a time."""
    options = GenerationOptions(sampling=SamplingParams(temperature=0.0), max_new_tokens=400)
    handles = [engine.submit(prompt_of(case), options) for case in cases]
    return [handle.result() for handle in handles]


def family_report(engine: Any, family: str, cases: int, seed: int) -> dict[str, Any]:
    rng = random.Random(f"{seed}/{family}")
    drawn = [draw(family, rng, "heldout") for _ in range(cases)]
    results = answer(engine, drawn)
    wrong = [
        {"asked": case.messages[-1]["content"], "wanted": case.answer, "given": result.text}
        for case, result in zip(drawn, results, strict=True)
        if not case.check(reply_of(result))
    ]
    return {"right": cases - len(wrong), "of": cases, "wrong": wrong[:SHOWN]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    args = parser.parse_args()
    with open_demo() as engine:
        families = {f: family_report(engine, f, args.cases, args.seed) for f in FAMILIES}
    passed = all(entry["right"] >= SHARE * entry["of"] for entry in families.values())
    print_report({"accept": "accuracy", "seed": args.seed, "families": families}, passed)


if __name__ == "__main__":
    main()
