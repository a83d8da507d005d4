"""Speculation beside plain decoding: rounds, acceptance, and whether the answers are the same.

Usage: python bench/speculation.py [--stage answers] [--device cuda:0] [--out FILE]
           [--models demo geometry:9b:bf16] [--spec mtp] [--drafts 0 1 3] [--rows 1 4 8]
           [--tokens 96] [--temperature 0.0] [--draft-sampling]
       python bench/speculation.py --stage floor --models geometry:0.8b:bf16 geometry:9b:bf16
           --drafts 3 --rows 1 --tokens 400 [--repeats 5]
       python bench/speculation.py --stage costs --models geometry:9b:bf16 geometry:27b:bf16
           --spec dflash --drafts 7 15 --rows 1 2 3 4 5 6 7 8

``answers``: for every model, number of drafts (0 is plain) and rows: milliseconds of a round,
tokens a second, tokens a round and acceptance by place, greedy unless told otherwise; ``--spec`` is
mtp, dflash or dflash2, where the model has such a drafter: the demo model and the geometries 9b and
27b have all three, in every stage. The demo model answers held-out cases of its tasks, others go on
from random tokens with random weights, so that hardly a draft is right and nearly all rounds draft
nothing. "same" is the share of outputs equal to the plain ones, with the places at which the others
begin to differ.

``floor``: an engine that drafts and one that does not, over the same prompts, where hardly a draft
is right (random weights; of the demo model, ``random-head``): milliseconds a token, and the median
of the ratios, which may be 1.03. ``costs``: the table that start-up measures, a round that verifies
K drafts beside a plain one, and the speed that follows for published acceptance; on the CPU nothing
is measured. Prints one JSON object per line.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _draft_stages import PLUGINS, STAGES
from _draft_stages import run as run_stage

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.events import GenerationResult
from ninfer_core.contract.requests import ChatOptions, GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_demo_model.tasks import FAMILIES, draw

PROMPT = 64
DEMO_CASES = 4
"""Of each family, for each number of rows."""


def main() -> None:
    args = _parser().parse_args()
    if args.stage != "answers":
        _write(args, run_stage(args.stage, args))
        return
    lines = []
    for model in args.models:
        plain: dict[int, list[tuple[int, ...]]] = {}
        for drafts in args.drafts:
            for line in measure(model, drafts, args, plain):
                lines.append(line)
                print(json.dumps(line), flush=True)
    _write(args, lines)


def _write(args: argparse.Namespace, lines: Sequence[dict[str, Any]]) -> None:
    if args.out:
        args.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


def measure(
    model: str, drafts: int, args: argparse.Namespace, plain: dict[int, list[tuple[int, ...]]]
) -> Sequence[dict[str, Any]]:
    """One engine, all numbers of rows. ``plain`` keeps the answers of the engine that drafts
    nothing, by rows."""
    options = EngineOptions(
        devices=(args.device,),
        plugins=(PLUGINS[args.spec],) if drafts else (),
        draft=args.spec if drafts else None,
        draft_tokens=drafts,
        draft_sampling=args.draft_sampling and drafts > 0,
        max_concurrency=max(args.rows),
        max_pending=4096,
        max_context=4096,
        cache_policy="off",
    )
    began = time.perf_counter()
    lines = []
    with Engine.open(model, options) as engine:
        opened = time.perf_counter() - began
        for rows in args.rows:
            asked = prompts(model, rows, engine.load_summary().vocab_size)
            run(engine, asked[:rows], rows, args, model)
            results, seconds = run(engine, asked, rows, args, model)
            tokens = [result.token_ids for result in results]
            if not drafts:
                plain[rows] = tokens
            lines.append(
                {"model": model, "spec": args.spec, "drafts": drafts, "rows": rows}
                | {"opened_s": round(opened, 1)}
                | figures(results, seconds, rows)
                | sameness(tokens, plain.get(rows))
            )
    return lines


def prompts(model: str, rows: int, vocabulary: int) -> list[PromptInput]:
    if model != "demo":
        rng, span = random.Random(rows), (1000, 20_000)
        if vocabulary < span[1]:
            span = vocabulary // 4, 3 * vocabulary // 4
        ids = [[rng.randrange(*span) for _ in range(PROMPT)] for _ in range(rows)]
        return [PromptInput(token_ids=row) for row in ids]
    cases = [
        draw(family, random.Random(f"{rows}/{family}/{place}"), "heldout")
        for place in range(DEMO_CASES)
        for family in FAMILIES
    ]
    return [
        PromptInput(
            messages=case.messages, tools=case.tools, chat=ChatOptions(thinking=case.thinking)
        )
        for case in cases
    ]


def run(
    engine: Engine,
    asked: Sequence[PromptInput],
    rows: int,
    args: argparse.Namespace,
    model: str,
) -> tuple[list[GenerationResult], float]:
    """``rows`` at a time; the demo model answers to the end, others give ``tokens``."""
    options = GenerationOptions(
        sampling=SamplingParams(temperature=args.temperature, seed=1),
        max_new_tokens=400 if model == "demo" else args.tokens,
        ignore_eos=model != "demo",
    )
    began, results = time.perf_counter(), []
    for first in range(0, len(asked), rows):
        handles = [engine.submit(prompt, options) for prompt in asked[first : first + rows]]
        results += [handle.result(600.0) for handle in handles]
    return results, time.perf_counter() - began


def figures(results: Sequence[GenerationResult], seconds: float, rows: int) -> dict[str, Any]:
    """Rounds behind the prompt's, which gives the first token."""
    timings = [result.timings for result in results]
    rounds = sum(t.rounds - 1 for t in timings)
    tokens = sum(len(result.token_ids) - 1 for result in results)
    drafted, accepted = (
        _by_place([t.drafted for t in timings]),
        _by_place([t.accepted for t in timings]),
    )
    return {
        "round_ms": round(1e3 * sum(t.decode for t in timings) / max(1, rounds), 3),
        "tokens_per_s": round((tokens + len(results)) / seconds, 1),
        "rounds": rounds,
        "tokens_per_round": round(tokens / max(1, rounds), 3),
        "drafted": drafted,
        "acceptance": [round(a / max(1, d), 4) for a, d in zip(accepted, drafted, strict=True)],
    }


def sameness(
    tokens: Sequence[tuple[int, ...]], plain: Sequence[tuple[int, ...]] | None
) -> dict[str, Any]:
    if plain is None:
        return {}
    differ = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), min(len(x), len(y)))
        for x, y in zip(tokens, plain, strict=True)
        if x != y
    ]
    return {"same": f"{len(tokens) - len(differ)}/{len(tokens)}", "differ_at": differ[:20]}


def _by_place(counts: Sequence[tuple[int, ...]]) -> list[int]:
    widest = max((len(row) for row in counts), default=0)
    return [sum(row[i] for row in counts if i < len(row)) for i in range(widest)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", default="answers", choices=("answers", *STAGES))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--models", nargs="+", default=["demo", "geometry:9b:bf16"])
    parser.add_argument("--spec", default="mtp", choices=tuple(PLUGINS))
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--draft-sampling", action="store_true")
    parser.add_argument("--drafts", nargs="+", type=int, default=[0, 1, 3])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 8])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    return parser


if __name__ == "__main__":
    main()
