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
ENGINES = ("activations", "checkpoints", "demote", "ends", "speculation", "transfers")
"""Files of tests/gpu whose engines take no more of the device than they need: they may share it."""

COMPILED_ONLY = "--ignore=tests/ops_triton/test_compiles.py"
"""What needs no GPU; every kernel is compiled where it runs."""

GREEDY = "tests/gpu/test_engine.py::test_an_engine_that_does_not_fit_says_what_would"
"""It takes nearly all of the device's memory: nothing else may run there meanwhile."""

SUITES = {
    "full device": (GREEDY,),
    "tests/device": ("tests/device",),
    "tests/gpu, one by one": (
        "tests/gpu", f"--deselect={GREEDY}",
        *(f"--ignore=tests/gpu/test_{name}.py" for name in ENGINES),
    ),
    "tests/gpu, engines": tuple(f"tests/gpu/test_{name}.py" for name in ENGINES),
    "tests/ops_triton": ("tests/ops_triton", COMPILED_ONLY),
}  # fmt: skip
"""Arguments of pytest by the name of a step."""

WORKERS = {"tests/gpu, engines": 4, "tests/ops_triton": 12}
"""Processes of suites whose tests may share the GPU with each other; one for each of the others."""

TINY = {
    "tests/device": ("tests/device/test_flags.py",),
    "tests/ops_triton": ("tests/ops_triton/test_conv.py",),
}
CHECKER = "compute-sanitizer"
NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Each tensor is its own allocation, so that the checker sees where it ends."""

UNCHECKED = (COMPILED_ONLY, "--ignore-glob=*_gpu.py", "-k", "not captured")
"""What compiles only, and what captures graphs, which needs the cache."""

FOUND = 86
"""Exit code of the checker when it found an error."""

FIRST, LATER, SHOWN = (6000, 3000), (700, 1800), 24
"""Characters from the beginning and the end of the first failure of a suite, and of each other one
of as many as are shown: one that loses the device fails all behind it in its process."""


def steps(stage: Stage, asked: argparse.Namespace) -> None:
    stage.run("memcheck, planted", planted)
    for suite, whole in SUITES.items():
        target = TINY.get(suite, whole) if asked.tiny else whole
        run = partial(run_suite, stage, [*_side_by_side(suite), *target])
        if any("tests/gpu" in part for part in whole) and asked.device == "cpu":
            run = partial(dict, not_run="needs a GPU")
        stage.run(f"pytest {suite}", run)
    stage.run("memcheck, first cases", partial(first_cases, stage))


def run_suite(stage: Stage, options: list[str]) -> Facts:
    """Counts of a pytest run in a process of its own; passes when all that ran passed, and some
    did."""
    code, text, counts = _pytest(stage, options)
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


def _side_by_side(suite: str) -> list[str]:
    workers = min(WORKERS.get(suite, 1), (os.cpu_count() or 1) - 2)
    return ["-n", str(workers)] if workers > 1 else []


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
    command += ["-p", "_tally", "--tb=short"]
    code, text = outcome_of([*command, *options], left, **environment)
    entries = [json.loads(line) for line in tally.read_text(encoding="utf-8").splitlines()]
    tally.unlink()
    return code, text, {**_counts(entries), "in_time": code is not None}


def _counts(entries: list[Facts]) -> Facts:
    """Of outcomes, with what failures said."""
    found = Counter(entry["outcome"] for entry in entries)
    failed = [entry for entry in entries if entry["outcome"] == "failed"]
    slowest = sorted(entries, key=lambda entry: -entry["seconds"])[:5]
    lengths = [FIRST, *[LATER] * (SHOWN - 1)]
    return {
        "ran": len(entries) - found["skipped"],
        "failures": found["failed"],
        "skipped": found["skipped"],
        "failed": [entry["id"] for entry in failed][:60],
        "slowest": [f"{entry['seconds']:.1f} s {entry['id']}" for entry in slowest],
        "errors": [_said(*both) for both in zip(failed, lengths, strict=False)],
    }


def _said(entry: Facts, lengths: tuple[int, int]) -> Facts:
    """A failure's text without its middle, and the beginning of what its test wrote to stderr."""
    text, (begins, ends) = entry["error"], lengths
    if len(text) > begins + ends:
        left_out = len(text) - begins - ends
        text = f"{text[:begins]}\n[{left_out} characters]\n{text[-ends:]}"
    said = {"id": entry["id"], "error": text, "stderr": entry["stderr"]}
    return {name: value for name, value in said.items() if value}


def _checker() -> list[str]:
    options = ["--tool", "memcheck", "--report-api-errors", "no", "--target-processes", "all"]
    return [CHECKER, *options, "--error-exitcode", str(FOUND)]
