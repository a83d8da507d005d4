"""What the GPU stages share: steps, progress, conditions, one JSON file and a table."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _setting import conditions

Facts = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]

Step = Callable[[], Facts]
"""Does one check. ``passed`` of its facts is None, or left out, where there is nothing to fail."""

PACKAGES = (
    "ninfer-core", "torch", "triton", "cupy-cuda13x", "cuda-core", "cuda-bindings", "numpy",
    "transformers", "tokenizers",
)  # fmt: skip


@dataclass
class Stage:
    """Runs steps in order and writes the file after each, so that an early end loses one step.

    A step that raises is recorded with its traceback, and the next one runs. None is started once
    ``limit`` seconds have passed.
    """

    name: str
    out: Path
    limit: float
    only: frozenset[str]
    asked: Mapping[str, Any]
    steps: dict[str, Facts] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def say(self, text: str) -> None:
        print(f"[{self.seconds:6.1f} s] {text}", flush=True)

    def wants(self, name: str) -> bool:
        """Whether a step with this in its name, or part of it, was asked for."""
        return not self.only or any(part in name or name in part for part in self.only)

    def runs(self, name: str) -> bool:
        """Whether the step ``name`` itself was asked for."""
        return not self.only or any(part in name for part in self.only)

    def run(self, name: str, step: Step) -> None:
        if not self.runs(name):
            return
        if self.seconds > self.limit:
            self.say(f"{name}: not run, {self.limit:.0f} s have passed")
            self.steps[name] = {"passed": None, "not_run": "no time left"}
        else:
            self.say(name)
            self.steps[name] = self._facts(step)
            self.say(f"{name}: {_verdict(self.steps[name])}")
        self.write()

    def write(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        report = {
            "stage": self.name,
            "passed": self.passed,
            "asked": {name: value for name, value in self.asked.items() if name != "out"},
            "conditions": conditions() | gpu_conditions(),
            "seconds": round(self.seconds, 1),
            "steps": self.steps,
        }
        text = json.dumps(report, indent=1, default=str)
        (self.out / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")

    def table(self) -> None:
        """A line per step: verdict, seconds, and the facts that are numbers or short texts."""
        width = max(map(len, self.steps), default=0)
        print(f"\n{self.name}: {'passed' if self.passed else 'FAILED'}")
        for name, facts in self.steps.items():
            shown = [f"{key} {_short(value)}" for key, value in facts.items() if _plain(key, value)]
            print(f"  {name:{width}}  {_verdict(facts):8}  {'  '.join(shown)}"[:240])
        sys.stdout.flush()

    @property
    def passed(self) -> bool:
        return all(facts.get("passed") is not False for facts in self.steps.values())

    def _facts(self, step: Step) -> Facts:
        started = time.monotonic()
        try:
            facts = step()
        except Exception as error:
            traceback.print_exc()
            trace = traceback.format_exc(limit=-6).replace(f"{ROOT}{os.sep}", "")
            facts = {"passed": False, "error": f"{type(error).__name__}: {error}", "trace": trace}
        return facts | {"seconds": round(time.monotonic() - started, 1)}


def gpu_conditions() -> Facts:
    """Versions, source, device and driver; no device where there is no GPU."""
    found: Facts = {"packages": {}, "source": source_digest()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found["packages"][package] = importlib.metadata.version(package)
    query = "name,driver_version,memory.total,clocks.sm,clocks.max.sm"
    described = _output("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")
    if described:
        found["gpu"] = dict(
            zip(query.split(","), described.splitlines()[0].split(", "), strict=True)
        )
    return found


def source_digest() -> str:
    """SHA-256 over the code that runs, and what plug-ins read beside it, as tables of tiles: a
    copy of a checkout may not know its commit.

    Paths are included, in their order.
    """
    digest = hashlib.sha256()
    for folder in ("ninfer_core", "plugins", "bench"):
        paths = [*(ROOT / folder).rglob("*.py")]
        if folder == "plugins":
            paths += (ROOT / folder).rglob("*.json")
        for path in sorted(paths):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def outcome_of(command: list[str], timeout: float, **environment: str) -> tuple[int | None, str]:
    """Exit code, None when it did not end in time, and the last of what it wrote."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            env={**os.environ, **environment},
            check=False,
        )
    except subprocess.TimeoutExpired as ended:
        return None, (ended.stdout or b"").decode(errors="replace")[-8000:]
    return done.returncode, done.stdout.decode(errors="replace")[-8000:]


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    code, text = outcome_of(list(command), 20)
    return text.strip() if code == 0 else ""


def _verdict(facts: Facts) -> str:
    if "not_run" in facts:
        return "not run"
    return {True: "passed", False: "FAILED", None: "-"}[facts.get("passed")]


def _plain(key: str, value: Any) -> bool:
    if key in ("passed", "trace"):
        return False
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) < 80)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
