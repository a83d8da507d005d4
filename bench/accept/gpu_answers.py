"""Right answers of the demo model by family, for every weight and context memory format."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
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

RECIPES = {"bf16": 2, "fp8": 4, "q4": 4}
"""Of each: in so many cases of a family one of GPU and CPU may be right and the other wrong."""

KV_FORMATS = ("int8", "fp8")
CONTEXT = 4096

Answers = dict[str, list[tuple[bool, tuple[int, ...]]]]
"""By family: whether an answer is right, and its tokens."""


def answer_steps(stage: Stage, asked: argparse.Namespace, artifacts: Mapping[str, Path]) -> None:
    """``artifacts`` are of the demo model, by recipe; those are used whose steps are asked for.
    The CPU answers in processes of its own, beside the GPU."""
    artifacts = {name: path for name, path in artifacts.items() if stage.runs(f"answers, {name}")}
    cases = 2 if asked.tiny else asked.cases
    on_cpu = 0 if asked.cpu_report or asked.device == "cpu" else min(cases, asked.cpu_cases)
    spawn = multiprocessing.get_context("spawn")
    workers = max(1, (os.cpu_count() or 1) - 2)
    with ProcessPoolExecutor(workers, spawn, _use_one_thread) as pool:
        expected = {
            recipe: [
                pool.submit(_answered, path, "cpu", None, on_cpu, asked.seed, (family,))
                for family in FAMILIES
            ]
            for recipe, path in artifacts.items()
            if on_cpu
        }
        given: dict[str, Answers] = {}
        for recipe, path in artifacts.items():
            run = partial(_on_device, path, asked.device, None, cases, asked.seed, given, recipe)
            stage.run(f"answers, {recipe}", run)
        for kv in KV_FORMATS if asked.device != "cpu" and "bf16" in artifacts else ():
            path, name = artifacts["bf16"], f"kv {kv}"
            run = partial(_on_device, path, asked.device, kv, cases, asked.seed, given, name)
            stage.run(f"answers, bf16, {name}", run)
        for recipe in artifacts:
            allowed = RECIPES[recipe]
            if asked.cpu_report and recipe in given:
                wrong = json.loads(asked.cpu_report.read_text())["steps"][f"answers, {recipe}"]
                run = partial(against_report, given[recipe], wrong["wrong"], wrong["of"], allowed)
                stage.run(f"answers, {recipe}, against the CPU", run)
            elif recipe in given and recipe in expected:
                run = partial(against, given[recipe], expected[recipe], allowed)
                stage.run(f"answers, {recipe}, against the CPU", run)


def convert_all(stage: Stage, place: Path) -> dict[str, Path]:
    """The demo model in each weight format; what is lost stands in the report."""
    artifacts = {recipe: place / f"demo-{recipe}.ninfer" for recipe in RECIPES}
    for recipe, path in artifacts.items():

        def convert(recipe: str = recipe, path: Path = path) -> Facts:
            report = convert_checkpoint(CHECKPOINT, path, recipe=recipe)
            return {"bytes": report.bytes, "worst_rms_error": report.max_rms_relative_error}

        stage.run(f"for answers and invariance, convert {recipe}", convert)
    return artifacts


def against(given: Answers, expected: list[Future[Answers]], allowed: int) -> Facts:
    """Case by case: the same answer may be right on one of them only ``allowed`` times a family."""
    wanted = {family: some for part in expected for family, some in part.result().items()}
    differing = {
        family: sum(a[0] != b[0] for a, b in zip(given[family], some, strict=False))
        for family, some in wanted.items()
    }
    same = sum(
        a[1] == b[1]
        for family, some in wanted.items()
        for a, b in zip(given[family], some, strict=False)
    )
    return {
        "cases": sum(map(len, wanted.values())),
        "right_on_cpu": {f: sum(right for right, _ in some) for f, some in wanted.items()},
        "differ_in_correctness": differing,
        "allowed": allowed,
        "same_tokens": same,
        "passed": max(differing.values()) <= allowed,
    }


def against_report(
    given: Answers, wrong: Mapping[str, Sequence[int]], cases: int, allowed: int
) -> Facts:
    """The same by the numbers of the cases that a CPU got wrong, of ``cases`` as many as here."""
    if cases != sum(map(len, given.values())):
        raise ValueError(f"the CPU's report is of {cases} cases")
    differing = {
        family: len({i for i, (right, _) in enumerate(some) if not right} ^ set(wrong[family]))
        for family, some in given.items()
    }
    return {
        "cases": cases,
        "differ_in_correctness": differing,
        "allowed": allowed,
        "passed": max(differing.values()) <= allowed,
    }


def _on_device(
    path: Path, device: str, kv: str | None, cases: int, seed: int,
    given: dict[str, Answers], name: str,
) -> Facts:  # fmt: skip
    """Passes when each family has its share; context formats only tell their count."""
    found = given[name] = _answered(path, device, kv, cases, seed)
    right = {family: sum(right for right, _ in some) for family, some in found.items()}
    enough = min(right.values()) >= SHARE * cases
    return {
        "right": sum(right.values()),
        "of": cases * len(FAMILIES),
        "by_family": right,
        "wrong": {
            family: [i for i, (right, _) in enumerate(some) if not right]
            for family, some in found.items()
        },
        "passed": enough if kv is None else None,
    }


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _draw(family: str, cases: int, seed: int) -> list[Case]:
    rng = random.Random(f"{seed}/{family}")
    return [draw(family, rng, "heldout") for _ in range(cases)]


def _answered(
    path: Path, device: str, kv: str | None, cases: int, seed: int,
    families: Sequence[str] = tuple(FAMILIES),
) -> Answers:  # fmt: skip
    settings: dict[str, Any] = {"max_concurrency": 8, "max_pending": 4096, "queue_timeout": None}
    options = EngineOptions(devices=(device,), max_context=CONTEXT, kv_format=kv, **settings)
    found: Answers = {}
    with Engine.open(path, options) as engine:
        for family in families:
            drawn = _draw(family, cases, seed)
            found[family] = [
                (case.check(reply_of(result)), result.token_ids)
                for case, result in zip(drawn, answer(engine, drawn), strict=True)
            ]
    return found
