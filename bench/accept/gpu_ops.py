"""Stage `ops`: tests of device and kernels on the GPU, some of them under a memory checker."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections import Counter
from functools import partial
from pathlib import Path

from _stage import Facts, Stage, outcome_of

HERE = Path(__file__).parent
SUITES = ("tests/device", "tests/gpu", "tests/ops_triton")
TINY = {
    "tests/device": "tests/device/test_flags.py",
    "tests/ops_triton": "tests/ops_triton/test_conv.py",
}
CHECKER = "compute-sanitizer"
NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Each tensor is its own allocation, so that the checker sees where it ends."""

UNCHECKED = (
    "--ignore=tests/ops_triton/test_compiles.py", "--ignore-glob=*_gpu.py", "-k", "not captured",
)  # fmt: skip
"""What compiles only, and what captures graphs, which needs the cache."""

FOUND = 86
"""Exit code of the checker when it found an error."""


def steps(stage: Stage, asked: argparse.Namespace) -> None:
    stage.run("memcheck, planted", planted)
    for suite in SUITES:
        target = TINY.get(suite, suite) if asked.tiny else suite
        run = partial(run_suite, stage, target)
        if suite == "tests/gpu" and asked.device == "cpu":
            run = partial(dict, not_run="needs a GPU")
        stage.run(f"pytest {suite}", run)
    stage.run("memcheck, first cases", partial(first_cases, stage))


def run_suite(stage: Stage, target: str) -> Facts:
    """Counts of a pytest run in a process of its own; passes when all that ran passed, and some
    did."""
    code, text, counts = _pytest(stage, [*_side_by_side(target), target])
    facts = counts | {"exit_code": code} | ({"output": text[-3000:]} if code else {})
    return facts | {"passed": code == 0 and counts["ran"] > 0}


def planted() -> Facts:
    """A kernel that stores one element past its tensor must be reported: the checker works."""
    if shutil.which(CHECKER) is None:
        return {"not_run": f"{CHECKER} is not on the PATH"}
    script = str(HERE / "_store_outside.py")
    code, text = outcome_of([*_checker(), sys.executable, script], 180, **NO_CACHE)
    reported = code == FOUND and "Invalid __global__ write" in text
    facts = {"exit_code": code, "reported": reported, "passed": reported}
    return facts if reported else facts | {"output": text[-1500:]}


def first_cases(stage: Stage) -> Facts:
    """The first case of each kernel test, under the checker."""
    if shutil.which(CHECKER) is None:
        return {"not_run": f"{CHECKER} is not on the PATH"}
    options = [*UNCHECKED, "--timeout=0", "tests/ops_triton"]
    code, text, counts = _pytest(stage, options, _checker(), FIRST_CASES="1", **NO_CACHE)
    clean = code != FOUND and "ERROR SUMMARY: 0 errors" in text
    passed = clean and counts["ran"] > 0 and not counts["failures"]
    facts = counts | {"exit_code": code, "clean": clean, "passed": passed}
    return facts if passed else facts | {"output": text[-3000:]}


def _side_by_side(target: str) -> list[str]:
    """Options for suites whose tests may share the GPU; those of its memory have it alone."""
    workers = min(12, (os.cpu_count() or 1) - 2)
    return ["-n", str(workers)] if target == "tests/ops_triton" and workers > 1 else []


def _pytest(
    stage: Stage, options: list[str], prefix: list[str] | None = None, **environment: str
) -> tuple[int | None, str, Facts]:
    """Exit code, None when time ran out, the end of the output, and the counts of what ended."""
    tally = stage.out.resolve() / "tally.jsonl"
    tally.parent.mkdir(parents=True, exist_ok=True)
    tally.write_text("", encoding="utf-8")
    command = [*(prefix or ()), sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    environment |= {"TALLY": str(tally), "PYTHONPATH": paths}
    left = max(60.0, stage.limit - stage.seconds)
    code, text = outcome_of([*command, "-p", "_tally", *options], left, **environment)
    entries = [json.loads(line) for line in tally.read_text(encoding="utf-8").splitlines()]
    tally.unlink()
    found = Counter(entry["outcome"] for entry in entries)
    slowest = sorted(entries, key=lambda entry: -entry["seconds"])[:5]
    return (
        code,
        text,
        {
            "ran": len(entries) - found["skipped"],
            "failures": found["failed"],
            "skipped": found["skipped"],
            "in_time": code is not None,
            "failed": [entry["id"] for entry in entries if entry["outcome"] == "failed"][:60],
            "slowest": [f"{entry['seconds']:.1f} s {entry['id']}" for entry in slowest],
        },
    )


def _checker() -> list[str]:
    options = ["--tool", "memcheck", "--report-api-errors", "no", "--target-processes", "all"]
    return [CHECKER, *options, "--error-exitcode", str(FOUND)]
