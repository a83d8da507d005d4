"""Right answers of the demo model by family, for every weight and context memory format."""

from __future__ import annotations

import argparse
import random
from functools import partial
from pathlib import Path
from typing import Any

from _setting import CHECKPOINT
from _stage import Facts, Stage
from accuracy import SHARE, answer, reply_of

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_demo_model.tasks import FAMILIES, Case, draw
from ninfer_qwen3_5.convert import convert_checkpoint

RECIPES = ("bf16", "fp8", "q4")
KV_FORMATS = ("int8", "fp8")
CONTEXT = 4096


def answer_steps(stage: Stage, asked: argparse.Namespace, place: Path) -> None:
    cases = 2 if asked.tiny else asked.cases
    on_cpu = min(cases, asked.cpu_cases)
    artifacts = {recipe: place / f"demo-{recipe}.ninfer" for recipe in RECIPES}
    for recipe, path in artifacts.items():

        def convert(recipe: str = recipe, path: Path = path) -> Facts:
            report = convert_checkpoint(CHECKPOINT, path, recipe=recipe)
            return {"bytes": report.bytes, "worst_rms_error": report.max_rms_relative_error}

        stage.run(f"answers, convert {recipe}", convert)
        run = partial(answers, path, asked.device, None, cases, on_cpu, asked.seed)
        stage.run(f"answers, {recipe}", run)
    for kv in KV_FORMATS if asked.device != "cpu" else ():
        run = partial(answers, artifacts["bf16"], asked.device, kv, cases, 0, asked.seed)
        stage.run(f"answers, bf16, kv {kv}", lambda run=run: run() | {"passed": None})


def answers(path: Path, device: str, kv: str | None, cases: int, on_cpu: int, seed: int) -> Facts:
    """Right answers on the device; of the first ``on_cpu`` of each family, on the CPU as well.

    Passes when each family has its share, and the CPU has not more right ones than the device by
    more than one in twenty.
    """
    drawn = {family: _draw(family, cases, seed) for family in FAMILIES}
    given = _answered(path, device, kv, drawn)
    right = {family: sum(given[family][0]) for family in FAMILIES}
    facts: Facts = {
        "right": sum(right.values()),
        "of": cases * len(FAMILIES),
        "by_family": right,
        "passed": min(right.values()) >= SHARE * cases,
    }
    if on_cpu:
        some = {family: asked[:on_cpu] for family, asked in drawn.items()}
        expected = _answered(path, "cpu", None, some)
        mine = sum(sum(given[family][0][:on_cpu]) for family in FAMILIES)
        theirs = sum(sum(expected[family][0]) for family in FAMILIES)
        same = [
            a == b
            for family in FAMILIES
            for a, b in zip(given[family][1], expected[family][1], strict=False)
        ]
        facts |= {
            "first_right": mine,
            "first_right_on_cpu": theirs,
            "first_same_tokens": sum(same),
            "first_of": len(same),
        }
        facts["passed"] = facts["passed"] and mine >= theirs - len(same) / 20
    return facts


def _draw(family: str, cases: int, seed: int) -> list[Case]:
    rng = random.Random(f"{seed}/{family}")
    return [draw(family, rng, "heldout") for _ in range(cases)]


def _answered(
    path: Path, device: str, kv: str | None, drawn: dict[str, list[Case]]
) -> dict[str, tuple[list[bool], list[Any]]]:
    """Whether each answer is right, and its tokens."""
    options = EngineOptions(
        devices=(device,),
        max_concurrency=8,
        max_pending=4096,
        max_context=CONTEXT,
        queue_timeout=None,
        kv_format=kv,
    )
    found = {}
    with Engine.open(path, options) as engine:
        for family, cases in drawn.items():
            results = answer(engine, cases)
            right = [c.check(reply_of(r)) for c, r in zip(cases, results, strict=True)]
            found[family] = (right, [result.token_ids for result in results])
    return found
