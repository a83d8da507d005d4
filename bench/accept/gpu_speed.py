"""Stage `speed`: `ninfer bench` for each geometry and weight format."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import Any

from _stage import Facts, Stage, outcome_of

TINY = ["demo", "--prompt", "16", "--rounds", "4", "--batch", "1"]


def steps(stage: Stage, asked: argparse.Namespace) -> None:
    if asked.tiny:
        stage.run("demo", partial(bench, [*TINY, "--device", asked.device], 120))
        return
    for geometry in asked.geometry:
        for weights in asked.weights:
            options = ["--geometry", geometry, "--weights", weights, "--batch", asked.batch]
            run = partial(bench, [*options, "--device", asked.device], 400)
            stage.run(f"{geometry} {weights}", run)


def bench(options: list[str], timeout: float) -> Facts:
    """What the command measured; passes when it ended well."""
    program = "from ninfer_core.cli import main; main()"
    command = [sys.executable, "-c", program, "bench", *options, "--json"]
    code, text = outcome_of(command, timeout)
    found = _objects(text)
    return {
        "passed": code == 0 and bool(found),
        "exit_code": code,
        "measured": found[-1] if found else None,
        "output": "" if found and code == 0 else text[-3000:],
    }


def _objects(text: str) -> list[Any]:
    """JSON objects that are a line, or the rest of the text from a line on."""
    lines, found = text.splitlines(), []
    for index, line in enumerate(lines):
        if line.startswith("{"):
            for part in (line, "\n".join(lines[index:])):
                try:
                    found.append(json.loads(part))
                    break
                except ValueError:
                    continue
    return found
