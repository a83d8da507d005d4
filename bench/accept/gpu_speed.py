"""Stage `speed`: `ninfer bench` for each geometry and weight format, and of long prompts."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import Any

from _stage import Facts, Stage, outcome_of

FLOORS = {
    "27b bf16": {"share": 0.65, "prefill": 7e3},
    "9b bf16": {"share": 0.60, "prefill": 22e3},
    "4b bf16": {"share": 0.45, "prefill": 30e3},
    "0.8b bf16": {"share": 0.20, "prefill": 60e3},
    "27b fp8": {"rate": 95.0},
    "27b q4": {"rate": 130.0},
}
"""Least share of roofline, tokens a second of one request, and of a prompt of 8,192 tokens."""

HOST = {1: 250.0, 8: 400.0}
"""Most microseconds of the host in a decode round, by requests."""

LONG, LONGEST = 8192, 131072
FURTHER = 0.15
"""Decode after LONGEST tokens may reach so much less of the roofline than after 512."""

TINY = ["demo", "--prompt", "16", "--rounds", "4", "--batch", "1"]


def steps(stage: Stage, asked: argparse.Namespace) -> None:
    if asked.tiny:
        tiny = [*TINY, "--device", asked.device]
        stage.run("demo", partial(bench, tiny, 120))
        for activations in asked.activations:
            run = partial(bench, [*tiny, "--activations", activations], 120)
            stage.run(f"demo, activations {activations}", run)
        return
    for geometry in asked.geometry:
        for weights in asked.weights:
            name = f"{geometry} {weights}"
            options = ["--geometry", geometry, "--weights", weights, "--device", asked.device]
            short: dict[str, float] = {}
            run = partial(decode, [*options, "--batch", asked.batch], name, short)
            stage.run(f"decode, {name}", run)
            if weights == "bf16":
                stage.run(f"long prompts, {name}", partial(long_prompts, options, name, short))
            for activations in asked.activations:
                run = partial(prompts, [*options, "--activations", activations])
                stage.run(f"prompts, {name}, activations {activations}", run)


def decode(options: list[str], name: str, short: dict[str, float]) -> Facts:
    """Prompts of 512 tokens; the share of one request goes into ``short``."""
    facts = bench(options, 400)
    floor = FLOORS.get(name, {})
    for run in facts["measured"]["runs"] if facts["passed"] else ():
        batch, rate = run["batch"], run["decode_tokens_per_second"]
        if batch == 1:
            short["share"] = run["roofline_share"]
            facts["rate"] = rate
            facts["passed"] &= rate >= floor.get("rate", 0.0)
        facts[f"share {batch}"] = run["roofline_share"]
        facts[f"host {batch}"] = run["host_us"]["host"]
        facts["passed"] &= run["roofline_share"] >= floor.get("share", 0.0)
        facts["passed"] &= run["host_us"]["host"] <= HOST.get(batch, 400.0)
    return facts


def long_prompts(options: list[str], name: str, short: dict[str, float]) -> Facts:
    """Prompts of 8,192 and of 131,072 tokens, one at a time, in chunks of 8,192."""
    lengths = f"{LONG},{LONGEST}"
    facts = bench([*options, "--prompt", lengths, "--prefill-chunk", str(LONG)], 500)
    if facts["passed"]:
        prefill, far = facts["measured"]["runs"]
        facts["prefill"] = prefill["prefill_tokens_per_second"]
        facts["prefill far"] = far["prefill_tokens_per_second"]
        facts["share far"] = far["roofline_share"]
        facts["passed"] &= facts["prefill"] >= FLOORS.get(name, {}).get("prefill", 0.0)
        if short:
            facts["passed"] &= facts["share far"] >= short["share"] - FURTHER
    return facts


def prompts(options: list[str]) -> Facts:
    """Prompts of 512, 1,024 and 8,192 tokens, each one chunk; only told."""
    lengths = f"512,1024,{LONG}"
    chosen = ["--prompt", lengths, "--prefill-chunk", str(LONG), "--new", "8", "--rounds", "4"]
    facts = bench([*options, *chosen], 300)
    for run in facts["measured"]["runs"] if facts["passed"] else ():
        facts[f"prefill {run['prompt_tokens']}"] = run["prefill_tokens_per_second"]
        facts[f"ttft {run['prompt_tokens']}"] = run["ttft_ms"]["p50"]
    return facts


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
