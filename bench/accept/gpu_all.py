"""Stage `all`: the other stages in processes of their own, within one limit, into one file.

On an H200 all of them take about 13 minutes; ``--only`` takes parts by their names.

What is timed runs alone, one part after another; what is only checked runs side by side. A part
that fails, hangs or finds no time left costs the others nothing: OUT/all.json is written anew as
parts go on, with the report of each, and the end of the output of those that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from _setting import conditions
from _stage import Facts, gpu_conditions
from gpu_speed import FURTHER

GPU = Path(__file__).with_name("gpu.py")
POLL = 1.0
TAIL = 3000
SPARE = 8.0
"""Seconds before the limit in which parts that still run are ended."""

LEAST = 0.7
"""Of what a part is expected to take; with less than that left it is not begun."""

KEPT = 0.85
"""Of what later phases are expected to take; so much is left to them."""

PATIENCE, GRACE = 2.5, 30.0
"""A part is ended after so many times what it is expected to take and so many seconds more: one
that hangs costs the next ones no more than that."""


@dataclass(frozen=True)
class Part:
    """Options of ``gpu.py``, and about how many seconds it takes on an H200."""

    name: str
    options: tuple[str, ...]
    expected: float


def _speed(geometry: str, weights: str, only: str, expected: float) -> Part:
    name = f"{only}, {geometry} {weights}"
    options = ("--stage", "speed", "--geometry", geometry, "--weights", weights, "--batch", "1,8")
    return Part(name, (*options, "--only", only), expected)


ALONE = (Part("full device", ("--stage", "ops", "--only", "full device"), 15),)
"""What takes the device's memory."""

CHECKED = (
    Part(
        "ops",
        ("--stage", "ops", "--only", "memcheck", "tests/device", "one by one", "ops_triton"),
        250,
    ),
    Part("engines", ("--stage", "ops", "--only", "engines"), 150),
    Part("soak", ("--stage", "soak"), 80),
)
"""Kernels and engines."""


def _model(name: str, expected: float, *only: str) -> Part:
    return Part(name, ("--stage", "model", "--only", *only), expected)


MODEL = (
    _model("parity", 140, "parity"),
    _model("answers, bf16", 190, "answers, bf16", "convert bf16"),
    *(_model(f"answers, {r}", 130, f"answers, {r}", f"convert {r}") for r in ("fp8", "q4")),
    _model("invariance, demo", 220, "invariance, demo", "convert"),
    _model("invariance, geometry", 70, "invariance, geometry"),
)
"""What is computed, and whether it depends on what runs beside it."""

DECODE = (
    _speed("27b", "q4", "decode", 45),
    _speed("27b", "fp8", "decode", 26),
    _speed("27b", "bf16", "decode", 27),
    _speed("9b", "bf16", "decode", 22),
    _speed("4b", "bf16", "decode", 16),
    _speed("0.8b", "bf16", "decode", 17),
)
LONG = (
    _speed("27b", "bf16", "long", 50),
    _speed("9b", "bf16", "long", 30),
    _speed("4b", "bf16", "long", 25),
    _speed("0.8b", "bf16", "long", 20),
)
"""What says most comes first: time may end before the last."""
PHASES: tuple[tuple[bool, tuple[Part, ...]], ...] = (
    (False, ALONE + DECODE),
    (True, CHECKED),
    (True, MODEL),
    (False, LONG),
)
"""Whether the parts run side by side, and the parts."""


@dataclass
class Running:
    """A part's process, with its reports and output in a folder that does not outlive the stage."""

    part: Part
    process: subprocess.Popen[bytes]
    folder: Path
    log: IO[bytes]
    begun: float
    ended: float | None = None

    @classmethod
    def start(cls, part: Part, place: Path, asked: argparse.Namespace, left: float) -> Running:
        folder = place / part.name.replace(" ", "_").replace(",", "")
        folder.mkdir(parents=True)
        log = (folder / "output.txt").open("w+b")
        command = [sys.executable, str(GPU), *part.options, "--out", str(folder)]
        command += ["--device", asked.device, "--commit", asked.commit, "--seed", str(asked.seed)]
        command += ["--limit", str(max(1.0, left - SPARE)), *(["--tiny"] if asked.tiny else [])]
        # A session of its own: what it started ends with it.
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        return cls(part, process, folder, log, time.monotonic())

    def over(self) -> bool:
        if self.ended is None and self.process.poll() is not None:
            self.ended = time.monotonic()
        return self.ended is not None

    def hangs(self) -> bool:
        return time.monotonic() - self.begun > PATIENCE * self.part.expected + GRACE

    def signal(self, number: signal.Signals) -> None:
        """To all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def facts(self) -> Facts:
        reports = [
            json.loads(path.read_text(encoding="utf-8")) for path in self.folder.glob("*.json")
        ]
        code = self.process.poll()
        seconds = (self.ended or time.monotonic()) - self.begun
        found: Facts = {"exit_code": code, "seconds": round(seconds, 1), "report": None}
        if reports:
            found["report"] = reports[0]
        found["passed"] = None if code is None else code == 0
        if code != 0:
            found["output"] = self._tail()
        return found

    def _tail(self) -> str:
        self.log.flush()
        return (self.folder / "output.txt").read_bytes()[-TAIL:].decode(errors="replace")


def end(late: list[Running]) -> None:
    """All at once: each may take its time to go."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for running in late:
            running.signal(number)
        limit = time.monotonic() + 3.0
        for running in late:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(max(0.0, limit - time.monotonic()))
            running.over()


@dataclass
class Whole:
    """All parts, and the file."""

    asked: argparse.Namespace
    place: Path
    begun: float = field(default_factory=time.monotonic)
    parts: dict[str, Facts] = field(default_factory=dict)
    live: list[Running] = field(default_factory=list)
    reserved: float = 0.0

    @property
    def left(self) -> float:
        """Seconds for the parts of this phase."""
        return float(self.asked.limit) - self.reserved - (time.monotonic() - self.begun)

    def phase(self, together: bool, parts: list[Part], reserved: float = 0.0) -> None:
        """Run ``parts``; ``reserved`` seconds are for those of later phases."""
        self.reserved = reserved
        for part in parts:
            if self.left < min(part.expected, float(self.asked.limit)) * LEAST:
                self.parts[part.name] = {"passed": None, "not_run": "no time left"}
                self.say(f"{part.name}: not run, {self.left:.0f} s are left")
                continue
            self.say(part.name)
            self.live.append(Running.start(part, self.place, self.asked, self.left))
            if not together:
                self.wait()
        self.wait()
        self.write()

    def wait(self) -> None:
        """Until all that run have ended, or have to."""
        while self.live:
            for running in [one for one in self.live if one.over()]:
                self._ended(running)
            late = [one for one in self.live if self.left < SPARE or one.hangs()]
            end(late)
            for running in late:
                self._ended(running)
            self.write()
            if self.live:
                time.sleep(POLL)

    def _ended(self, running: Running) -> None:
        self.live.remove(running)
        self.parts[running.part.name] = found = running.facts()
        running.log.close()
        self.say(f"{running.part.name}: exit code {found['exit_code']}, {found['seconds']} s")

    def compare(self) -> None:
        """Decode after the longest prompts against decode after short ones, of another process."""
        found: Facts = {}
        for geometry in sorted({part.options[3] for part in LONG}):
            short, far = (
                self._figure(f"{kind}, {geometry} bf16", key)
                for kind, key in (("decode", "share 1"), ("long", "share far"))
            )
            if short is not None and far is not None:
                found[geometry] = {"share 1": short, "share far": far}
        if found:
            near = all(two["share far"] >= two["share 1"] - FURTHER for two in found.values())
            facts = {"shares": found, "allowed": FURTHER, "exit_code": 0, "seconds": 0.0}
            self.parts["far against near"] = facts | {"passed": near}
            self.write()

    def _figure(self, part: str, key: str) -> float | None:
        report = self.parts.get(part, {}).get("report") or {}
        values = [step[key] for step in report.get("steps", {}).values() if key in step]
        return float(values[0]) if values else None

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.begun:6.1f} s] {text}", flush=True)

    @property
    def passed(self) -> bool:
        return bool(self.parts) and all(facts["passed"] for facts in self.parts.values())

    def write(self) -> None:
        """Beside the file first: who looks at it, or ends us, finds a whole one."""
        parts = self.parts | {one.part.name: one.facts() for one in self.live}
        report = {
            "stage": "all",
            "passed": self.passed and not self.live,
            "conditions": conditions() | self.asked.conditions,
            "seconds": round(time.monotonic() - self.begun, 1),
            "parts": parts,
        }
        target = self.asked.out / "all.json"
        beside = target.with_suffix(".part")
        beside.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
        beside.replace(target)

    def table(self) -> None:
        print(f"\nall: {'passed' if self.passed else 'NOT passed'}")
        for name, facts in self.parts.items():
            steps = (facts.get("report") or {}).get("steps", {})
            bad = [step for step, found in steps.items() if found.get("passed") is False]
            late = [step for step, found in steps.items() if "not_run" in found]
            said = facts.get("not_run") or f"{facts['seconds']} s"
            print(f"  {name:20} {said}; {len(steps)} steps", end="")
            print(f"; failed: {bad}" if bad else "", f"; not run: {late}" if late else "")
            for found in steps.values():
                shown = {key: found[key] for key in FIGURES if key in found}
                if shown:
                    print(f"      {shown}")
        sys.stdout.flush()


FIGURES = (
    "rate", "share 1", "share 8", "host 1", "host 8", "prefill", "prefill far", "share far",
)  # fmt: skip
"""Of steps of ``speed``, what the table shows."""


def _wanted(part: Part, asked: argparse.Namespace) -> bool:
    return not asked.only or any(text in part.name for text in asked.only)


def _expected(together: bool, parts: list[Part]) -> float:
    return (max if together else sum)([0.0, *(part.expected for part in parts)])


def run(asked: argparse.Namespace) -> int:
    """Exit status: 0 when every part ran and passed."""
    asked.out.mkdir(parents=True, exist_ok=True)
    asked.conditions = gpu_conditions()
    with tempfile.TemporaryDirectory() as folder:
        whole = Whole(asked, Path(folder))
        phases = [(together, [p for p in parts if _wanted(p, asked)]) for together, parts in PHASES]
        for number, (together, parts) in enumerate(phases):
            later = sum(_expected(*phase) for phase in phases[number + 1 :])
            whole.phase(together, parts, KEPT * min(later, asked.limit))
        whole.compare()
        whole.table()
    return 0 if whole.passed else 1
