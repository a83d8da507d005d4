"""Stages ``floor`` and ``costs`` of bench/speculation.py."""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams

PLUGINS = {"mtp": "spec_mtp", "dflash": "spec_dflash", "dflash2": "spec_dflash"}

RANDOM_HEAD = "random-head"
"""The demo model with an MTP head of random weights."""

PROMPT = 64
LIMIT = 1.03
ACCEPTED = {
    3: {"AIME": 3.40, "code": 3.18, "translation": 2.97, "story": 2.14},
    7: {"Math500": 5.56, "HumanEval": 5.09, "MT-Bench": 4.20, "Alpaca": 3.94},
    15: {"Math500": 7.35, "HumanEval": 6.44, "MT-Bench": 5.14, "Alpaca": 4.62},
}
"""Published tokens a round, by drafts: MTP with 3 on Qwen3.6-27B (NInfer, T = 0.6), DFlash with 7
and 15 on Qwen3.6-35B-A3B (its model card). Other targets and texts than those measured here."""

BLOCK_SHARE = 0.07
"""Weights of a DFlash drafter as a share of its target's: 3.85 of 54 GB for DFlash2 beside the 27B.
What a projection takes for its drafting, where none is measured."""


def options_of(args: argparse.Namespace, drafts: int, rows: int) -> EngineOptions:
    """Room for what runs and no more."""
    context = PROMPT + args.tokens + 64
    return EngineOptions(
        devices=(args.device,),
        plugins=(PLUGINS[args.spec],) if drafts else (),
        draft=args.spec if drafts else None,
        draft_tokens=drafts,
        draft_sampling=args.draft_sampling and drafts > 0,
        max_concurrency=rows,
        max_context=context,
        kv_tokens=rows * (context + 64),
        cache_policy="off",
    )


def floor(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Drafts that are hardly ever right beside none at all, answer by answer to the same prompts:
    what the first cost. One engine after the other, since one is all that a process should have on
    a device."""
    for model in args.models:
        with ExitStack() as held:
            source, found = _source(model, held), []
            for drafts in (0, args.drafts[-1]):
                with Engine.open(source, options_of(args, drafts, max(args.rows))) as engine:
                    found.append({rows: _repeats(engine, rows, args) for rows in args.rows})
        for rows in args.rows:
            line = {"stage": "floor", "model": model, "spec": args.spec, "rows": rows}
            line["tokens"] = args.tokens
            yield line | _paired(found[0][rows], found[1][rows], args.tokens)


def _repeats(engine: Any, rows: int, args: argparse.Namespace) -> list[tuple[float, int, int]]:
    _timed(engine, rows, min(32, args.tokens), 0)
    return [_timed(engine, rows, args.tokens, 1 + turn) for turn in range(args.repeats)]


def _paired(
    plain: Sequence[tuple[float, int, int]], drafting: Sequence[tuple[float, int, int]], tokens: int
) -> dict[str, Any]:
    pairs = list(zip(plain, drafting, strict=True))
    ratio = statistics.median(later[0] / earlier[0] for earlier, later in pairs)
    offered, taken = (sum(one[place] for one in drafting) for place in (1, 2))
    return {
        "plain_ms": [round(1e3 * one[0] / tokens, 4) for one in plain],
        "drafting_ms": [round(1e3 * one[0] / tokens, 4) for one in drafting],
        "ratio": round(ratio, 4),
        "drafted": offered,
        "acceptance": round(taken / max(1, offered), 4),
        "passed": ratio <= LIMIT,
    }


def _timed(engine: Any, rows: int, tokens: int, seed: int) -> tuple[float, int, int]:
    """Seconds of ``rows`` answers at once, and drafts offered and taken."""
    rng = random.Random(seed)
    options = GenerationOptions(
        sampling=SamplingParams(temperature=0.0), max_new_tokens=tokens, ignore_eos=True
    )
    most = engine.load_summary().vocab_size
    handles = [
        engine.submit(
            PromptInput(token_ids=[rng.randrange(most // 2, most - 64) for _ in range(PROMPT)]),
            options,
        )
        for _ in range(rows)
    ]
    began = time.perf_counter()
    timings = [handle.result(600.0).timings for handle in handles]
    seconds = time.perf_counter() - began
    drafted, accepted = sum(sum(t.drafted) for t in timings), sum(sum(t.accepted) for t in timings)
    return seconds, drafted, accepted


def costs(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The table that an engine measures at start, for every number of rows that is asked for."""
    from ninfer_qwen3_5.program.queued import draft_measure

    draft_measure.ROWS = tuple(args.rows)
    for model in args.models:
        for drafts in args.drafts:
            if not drafts:
                continue
            with ExitStack() as held:
                source = _source(model, held)
                options = options_of(args, drafts, max(args.rows))
                engine = held.enter_context(Engine.open(source, options))
                told = engine.load_summary().details["draft"]
            for rows, table in told.get("costs_ms", {}).items():
                line = {"stage": "costs", "model": model, "spec": args.spec}
                line |= {"drafts": drafts, "rows": int(rows)}
                yield line | _ratios(table, drafts, block=args.spec != "mtp")


def _ratios(table: Mapping[str, Any], drafts: int, *, block: bool) -> dict[str, Any]:
    """A block drafter's drafting is measured. A chain's is too, but longer chains than of 3 are
    drafted by blocks: there the projection takes what such a drafter's weights take to read."""
    plain, verify = table["plain"], table["verify"][drafts]
    measured = table["draft"][drafts]
    made = measured if block or drafts <= 3 else BLOCK_SHARE * plain
    drawn = table.get("drawn")
    told = {} if drawn is None else _drawn_ratios(drawn, drafts, measured)
    return told | {
        "plain_ms": plain,
        "verify_ms": verify,
        "verify_over_plain": round(verify / plain, 4),
        "drafting_ms": measured,
        "round_over_plain": round((verify + measured) / plain, 4),
        "projected_drafting_ms": round(made, 4),
        "projected_speedup": {
            text: round(length * plain / (verify + made), 3)
            for text, length in ACCEPTED.get(drafts, {}).items()
        },
    }


def _drawn_ratios(drawn: Mapping[str, Any], drafts: int, made: float) -> dict[str, Any]:
    """Of rounds that draw by a law."""
    plain, verify = drawn["plain"], drawn["verify"][drafts]
    return {
        "drawn_plain_ms": plain,
        "drawn_verify_ms": verify,
        "drawn_verify_over_plain": round(verify / plain, 4),
        "drawn_round_over_plain": round((verify + made) / plain, 4),
    }


def _source(model: str, held: ExitStack) -> Any:
    return _random_head(held) if model == RANDOM_HEAD else model


def _random_head(held: ExitStack) -> Path:
    """An artifact of the demo model whose MTP matrices are noise of their own size."""
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    from ninfer_qwen3_5.convert import convert_checkpoint

    checkpoint = Path(__file__).parents[1] / "plugins" / "demo_model" / "checkpoint"
    folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
    shutil.copytree(checkpoint, folder / "checkpoint")
    weights = folder / "checkpoint" / "model.safetensors"
    tensors, generator = load_file(weights), torch.Generator().manual_seed(0)
    for name, tensor in tensors.items():
        if name.startswith("mtp.") and tensor.dim() > 1:
            noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std()
            tensors[name] = noise.to(tensor.dtype)
    save_file(tensors, weights, metadata={"format": "pt"})
    convert_checkpoint(folder / "checkpoint", folder / "random.ninfer")
    return folder / "random.ninfer"


STAGES: Mapping[str, Any] = {"floor": floor, "costs": costs}


def run(stage: str, args: argparse.Namespace) -> Sequence[dict[str, Any]]:
    import json

    lines = []
    for line in STAGES[stage](args):
        lines.append(line)
        print(json.dumps(line), flush=True)
    return lines
