"""Greedy answers of the demo model with a draft backend against those without, token by token.

Usage: python bench/accept/speculation.py [--device cpu] [--backend mtp] [--share full|ci]
           [--rows 1 2 3 4 5 6 7 8] [--drafts 1 2 3 4 5 6 7] [--seed 0] [--out FILE]

Every number of rows B meets every number of drafts K: B prompts at once, each pair in at least
eight prompts, and 539 of them in all; with ``--share ci`` in one prompt beside the B - 1 others of
its batch. Prompts are held-out cases of all task families, no two alike. On the CPU every answer
must be the plain one. Drafts are made as if each cost a tenth of a plain round, as a CPU presumes,
so that every pair verifies some whatever the device measured; ``verified_by_rows`` counts rounds by
their rows and by the most drafts of a row. On a GPU, whose products of several rows round otherwise
than those of one, answers may differ at ties: at the first place where they differ, the log-
probabilities of both tokens in the plain run lie no farther apart than twice the noise, the most by
which the two runs' log-probabilities of one token after the same text differ, and than ``TIE``.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from _setting import open_demo, print_report
from accuracy import prompt_of

from ninfer_core.contract.events import GenerationResult
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_demo_model.tasks import FAMILIES, draw
from ninfer_grammar_xgrammar import limits

PLUGINS = {"mtp": "spec_mtp", "dflash": "spec_dflash", "dflash2": "spec_dflash"}
LEAST = 8
"""Prompts of each pair."""

TIE = 0.05
"""Difference of log-probabilities beyond which two tokens are no tie, whatever the noise."""

SHORTEST, JOINING = 32, 8
"""Tokens of an answer, and more of them for every row of its batch, so that the first row still
runs when the last one joins. Answers go on behind their ends."""

LISTED = 8


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """``rows`` prompts that are answered at once with ``drafts`` drafts."""

    rows: int
    drafts: int
    prompts: tuple[PromptInput, ...]


def batches(args: argparse.Namespace) -> Iterator[Batch]:
    for drafts in args.drafts:
        for rows in args.rows:
            least = 1 if args.share == "ci" else LEAST
            for turn in range(-(-least // rows)):
                rng = random.Random(f"{args.seed}/{drafts}/{rows}/{turn}")
                families = rng.choices(FAMILIES, k=rows)
                yield Batch(rows, drafts, tuple(_prompt(family, rng) for family in families))


def _prompt(family: Any, rng: random.Random) -> PromptInput:
    return prompt_of(draw(family, rng, "heldout"))


@contextmanager
def watched(verified: Counter[tuple[int, int]]) -> Iterator[None]:
    """Count rounds that verify drafts, by rows and the most drafts of one, and price drafts alike
    on every device."""
    from ninfer_qwen3_5.program import binding
    from ninfer_qwen3_5.program.program import TextProgram

    commit, prices = TextProgram.commit, vars(binding)["prices_of"]

    def counted(program: Any, pending: Any, decisions: Any) -> None:
        most = max((row.drafted for row in pending.rows), default=0)
        if most:
            verified[len(pending.rows), most] += 1
        commit(program, pending, decisions)

    def presumed(limits: Any) -> Any:
        return prices(replace(limits, draft_costs=None))

    with patch.object(TextProgram, "commit", counted), patch.object(binding, "prices_of", presumed):
        yield


def answer(
    args: argparse.Namespace, drafts: int, asked: Sequence[Batch], ready: dict[Batch, list[Any]]
) -> tuple[list[list[GenerationResult]], Counter[tuple[int, int]]]:
    """What an engine says to each batch, and how many rounds had how many rows and drafts.
    ``ready`` are the batches' prompts as the first engine made them."""
    verified: Counter[tuple[int, int]] = Counter()
    named = {"plugins": (PLUGINS[args.backend],), "draft": args.backend} if drafts else {}
    on_cpu = args.device == "cpu"
    listed = None if on_cpu else LISTED
    sizes = {"draft_tokens": drafts, "max_context": 4096}
    with watched(verified), open_demo(devices=(args.device,), **sizes, **named) as engine:
        answers = []
        for batch in asked:
            if batch not in ready:
                ready[batch] = [engine.prepare(prompt) for prompt in batch.prompts]
            options = GenerationOptions(
                sampling=SamplingParams(temperature=0.0),
                max_new_tokens=SHORTEST + JOINING * batch.rows,
                ignore_eos=True,
                logprobs=listed,
            )
            handles = [engine.submit(prompt, options) for prompt in ready[batch]]
            answers.append([handle.result(1200.0) for handle in handles])
        return answers, verified


def difference(ours: GenerationResult, plain: GenerationResult) -> dict[str, Any] | None:
    """The first place at which two answers differ, None if they do not."""
    if ours.token_ids == plain.token_ids:
        return None
    pairs = zip(ours.token_ids, plain.token_ids, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if place is None:
        return {"place": min(len(ours.token_ids), len(plain.token_ids)), "gap": None}
    if not plain.logprobs:
        return {"place": place, "gap": None}
    entry = plain.logprobs[place]
    listed = {other.token_id: other.logprob for other in entry.top}
    found = listed.get(ours.token_ids[place])
    return {"place": place, "gap": None if found is None else abs(entry.logprob - found)}


def distances(ours: GenerationResult, plain: GenerationResult) -> Iterator[float]:
    """Of the log-probabilities of the tokens up to the first that differs."""
    for mine, other in zip(ours.logprobs or (), plain.logprobs or (), strict=False):
        if mine.token_id != other.token_id:
            return
        yield abs(mine.logprob - other.logprob)


def compare(args: argparse.Namespace) -> dict[str, Any]:
    # A busy machine stretches the time after which the forms of tools are refused.
    limits.LOWERING_SECONDS = limits.WAITING_SECONDS = 600.0
    asked = list(batches(args))
    began = time.perf_counter()
    ready: dict[Batch, list[Any]] = {}
    plain, _ = answer(args, 0, asked, ready)
    report: dict[str, Any] = {
        "plain_s": round(time.perf_counter() - began, 1),
        "pairs": {},
        "verified_by_rows": {},
    }
    found: list[dict[str, Any]] = []
    noise = 0.0
    drafted, accepted = [0] * max(args.drafts), [0] * max(args.drafts)
    for drafts in args.drafts:
        places = [place for place, batch in enumerate(asked) if batch.drafts == drafts]
        made, rounds = answer(args, drafts, [asked[place] for place in places], ready)
        by_rows: dict[int, dict[int, int]] = {}
        for (rows, most), count in sorted(rounds.items()):
            by_rows.setdefault(rows, {})[most] = count
        report["verified_by_rows"][drafts] = by_rows
        for place, results in zip(places, made, strict=True):
            pair = f"{asked[place].rows}x{drafts}"
            report["pairs"][pair] = report["pairs"].get(pair, 0) + len(results)
            for ours, theirs in zip(results, plain[place], strict=True):
                for at, (offered, taken) in enumerate(
                    zip(ours.timings.drafted, ours.timings.accepted, strict=True)
                ):
                    drafted[at] += offered
                    accepted[at] += taken
                noise = max([noise, *distances(ours, theirs)])
                unequal = difference(ours, theirs)
                if unequal is not None:
                    found.append({"pair": pair, "batch": place} | unequal)
    prompts = sum(report["pairs"].values())
    return report | {
        "prompts": prompts,
        "equal": prompts - len(found),
        "differences": found,
        "noise": noise,
        "drafted": drafted,
        "accepted": accepted,
        "seconds": round(time.perf_counter() - began, 1),
    }


def holds(args: argparse.Namespace, report: dict[str, Any]) -> bool:
    least = 1 if args.share == "ci" else LEAST
    whole = len(report["pairs"]) == len(args.rows) * len(args.drafts)
    whole = whole and min(report["pairs"].values()) >= least and all(report["drafted"])
    # Every number of rows has verified some drafts of each K, and the largest as many as K.
    for drafts, by_rows in report["verified_by_rows"].items():
        whole = whole and all(rows in by_rows for rows in args.rows)
        whole = whole and drafts in by_rows.get(max(args.rows), ())
    if args.device == "cpu":
        return whole and not report["differences"]
    most = min(TIE, 2 * report["noise"])
    return whole and all(
        one["gap"] is not None and one["gap"] <= most for one in report["differences"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="mtp", choices=sorted(PLUGINS))
    parser.add_argument("--share", default="full", choices=("full", "ci"))
    parser.add_argument("--rows", nargs="+", type=int, default=list(range(1, 9)))
    parser.add_argument("--drafts", nargs="+", type=int, default=list(range(1, 8)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    report = {
        "accept": "speculation",
        "device": args.device,
        "backend": args.backend,
        "share": args.share,
        "tie": TIE,
    } | compare(args)
    if args.out:
        args.out.write_text(json.dumps(report, indent=2))
    print_report(report, holds(args, report))


if __name__ == "__main__":
    main()
