"""Stage `ops`: tests of device and kernels on the GPU, some of them under a memory checker."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

from _stage import Facts, Stage, outcome_of

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SUITES = ("tests/device", "tests/gpu", "tests/ops_triton")
TINY = {
    "tests/device": "tests/device/test_flags.py",
    "tests/ops_triton": "tests/ops_triton/test_conv.py",
}
CHECKER = "compute-sanitizer"
NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Each tensor is its own allocation, so that the checker sees where it ends."""

SECONDS = 400
"""That one suite may take."""

FOUND = 86
"""Exit code of the checker when it found an error."""


def steps(stage: Stage, asked: argparse.Namespace) -> None:
    for suite in SUITES:
        target = TINY.get(suite, suite) if asked.tiny else suite
        run = partial(run_suite, target, asked.out)
        if suite == "tests/gpu" and asked.device == "cpu":
            run = partial(dict, not_run="needs a GPU")
        stage.run(f"pytest {suite}", run)
    stage.run("memcheck, planted", planted)
    stage.run("memcheck, first cases", partial(first_cases, stage, asked))


def run_suite(target: str, out: Path) -> Facts:
    """Counts of a pytest run in a process of its own, and the end of its output if it failed."""
    report = out.resolve() / f"{target.replace('/', '-')}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", target]
    code, text = outcome_of([*command, f"--junitxml={report}"], SECONDS, PYTHONPATH=_paths())
    return _counts(report, code) | {"exit_code": code} | ({"output": text} if code else {})


def planted() -> Facts:
    """A kernel that stores one element past its tensor must be reported: the checker works."""
    if shutil.which(CHECKER) is None:
        return {"passed": None, "not_run": f"{CHECKER} is not on the PATH"}
    script = str(HERE / "_store_outside.py")
    code, text = outcome_of([*_checker(), sys.executable, script], 180, **NO_CACHE)
    return {
        "passed": code == FOUND and "Invalid __global__ write" in text,
        "exit_code": code,
        "output": text[-1500:],
    }


def first_cases(stage: Stage, asked: argparse.Namespace) -> Facts:
    """The first case of each kernel test, under the checker."""
    if shutil.which(CHECKER) is None:
        return {"passed": None, "not_run": f"{CHECKER} is not on the PATH"}
    report = asked.out.resolve() / "memcheck.xml"
    report.unlink(missing_ok=True)
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "_first_cases"]
    command = [*_checker(), *pytest, "--timeout=0", f"--junitxml={report}", "tests/ops_triton"]
    left = max(60.0, stage.limit - stage.seconds)
    code, text = outcome_of(command, left, PYTHONPATH=_paths(), **NO_CACHE)
    facts = _counts(report, code) | {"exit_code": code, "output": text[-4000:]}
    facts["passed"] = code == 0 and "ERROR SUMMARY: 0 errors" in text
    return facts


def _checker() -> list[str]:
    return [
        CHECKER,
        "--tool",
        "memcheck",
        "--error-exitcode",
        str(FOUND),
        "--target-processes",
        "all",
    ]


def _paths() -> str:
    return os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))


def _counts(report: Path, code: int | None) -> Facts:
    if not report.is_file():
        return {"passed": False, "why": "timed out" if code is None else "no report"}
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    ran = counts["tests"] - counts["skipped"]
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return counts | {"passed": code == 0 and ran > 0, "failed": failed[:40]}
