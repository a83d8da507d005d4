"""Start-up of the command line against its floor, ``python -c 'import typer'`` of the same run.

Usage: python bench/startup.py [--runs 21] [-o FILE]

Each command runs in turn in every round, so that a slow moment of the machine hits all of them.
Prints JSON: median wall time in ms of each command and its ratio to the floor (target 1.6).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

FLOOR = "import typer"
TARGET = 1.6


def commands() -> dict[str, list[str]]:
    """The measured command lines by name; the floor comes first."""
    ninfer = str(Path(sys.executable).with_name("ninfer"))
    return {
        FLOOR: [sys.executable, "-c", "import typer"],
        "ninfer --help": [ninfer, "--help"],
        "ninfer plugins": [ninfer, "plugins"],
        "ninfer --version": [ninfer, "--version"],
    }


def measure(runs: int) -> dict[str, list[float]]:
    """Wall times in ms of ``runs`` rounds, after one round that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in commands()}
    for index in range(runs + 1):
        for name, command in commands().items():
            start = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            if index:
                times[name].append((time.perf_counter() - start) * 1e3)
    return times


def report(times: dict[str, list[float]]) -> dict[str, object]:
    """Medians and ratios, with the conditions of the run."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "bench": "startup",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "runs": len(times[FLOOR]),
        "median_ms": {name: round(value, 1) for name, value in medians.items()},
        "ratio": {name: round(value / medians[FLOOR], 3) for name, value in medians.items()},
        "target_ratio": TARGET,
    }


def main() -> None:
    """Measure, print, and write FILE when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    text = json.dumps(report(measure(options.runs)), indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
