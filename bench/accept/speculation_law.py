"""The joint law of tokens through rounds of a Program that verify drafts, on a model of 8 tokens.

Usage: python bench/accept/speculation_law.py [--draws 50000] [--drafts 3] [--head] [--queued]
                                              [--only NAME]

Every draw is a sequence with a seed of its own: a prompt, one token after it, and rounds with the
drafts of a table of likely followers (``--head``: of an MTP head of random weights, which are
mostly wrong), until there are four tokens. Their counts are held against the exact law, which is
enumerated from transformers' logits in float64 by a sampler written here; chi-square, cells that
expect fewer than 5 draws are pooled. Two settings, and a tenth of the draws of the first once more
with drafts that are taken with the root of their probability, which must be seen. Prints one JSON
object; exit status 1 if a law is off (p below 1e-6), or the planted fault is not seen (1e-12).
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from _setting import print_report
from _tiny_target import VOCAB, TinyTarget
from torch import Tensor

from ninfer_core.contract.checkpoints import OutputRules
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.ops.reference import OPS
from ninfer_core.ops.table import Ops
from ninfer_core.testing.program_driver import ProgramDriver

MODEL_SEED = 4
PROMPT = (3, 1, 6, 1)
LENGTH = 4
ROWS = 32
PLANTED_SHARE = 10
LEAST_P, SEEN_P = 1e-6, 1e-12
SETTINGS = {
    "plain temperature": SamplingParams(temperature=1.0),
    "filters and penalties": SamplingParams(
        temperature=0.8,
        top_k=5,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        repetition_penalty=1.2,
    ),
}
PLANTED = "taken with the root"
_NEAR = 2e-5
"""A filter's edge nearer than this to a token could fall on either side in float32."""


class NearTie(Exception):
    """The law is too close to the edge of a filter: take another model or prompt."""


def law(logits: np.ndarray[Any, Any], history: Sequence[int], asked: SamplingParams) -> Any:
    """f64[V] of the next token, by the order that ``SamplingParams`` says. Raises NearTie."""
    scores = logits.astype(np.float64).copy()
    for token in range(VOCAB):
        count = history.count(token)
        if count or token in PROMPT:
            factor = asked.repetition_penalty
            scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
        scores[token] -= asked.presence_penalty * (count > 0) + asked.frequency_penalty * count
    scores /= asked.temperature
    order = np.argsort(-scores, kind="stable")
    kept = order[: asked.top_k] if asked.top_k else order
    if len(kept) < VOCAB and scores[kept[-1]] - scores[order[len(kept)]] < _NEAR:
        raise NearTie
    weights = np.exp(scores[kept] - scores[kept[0]])
    before = np.concatenate([[0.0], np.cumsum(weights / weights.sum())[:-1]])
    if asked.top_p < 1.0:
        if np.abs(before - asked.top_p).min() < _NEAR:
            raise NearTie
        kept, weights = kept[before < asked.top_p], weights[before < asked.top_p]
    made = np.zeros(VOCAB)
    made[kept] = weights / weights.sum()
    return made


def joint_law(target: TinyTarget, asked: SamplingParams, length: int = LENGTH) -> Any:
    """f64[V ** length]: of every sequence of ``length`` tokens behind the prompt."""
    logits = target.logits(PROMPT, length - 1).numpy()
    whole = []
    for row, tail in zip(logits, itertools.product(range(VOCAB), repeat=length - 1), strict=True):
        steps = [law(row[place], tail[:place], asked) for place in range(length)]
        before = np.prod([step[token] for step, token in zip(steps, tail, strict=False)])
        whole.append(before * steps[-1])
    return np.concatenate(whole)


@dataclass
class Counts:
    """``seen`` of every sequence of tokens; drafts ``made`` in rounds, and ``taken``."""

    seen: Any
    made: int = 0
    taken: int = 0


def draw(
    target: TinyTarget, asked: SamplingParams, draws: int, drafts: int, **program: Any
) -> Counts:
    """Sequences of seeds 0 .. ``draws`` - 1, :data:`ROWS` at a time."""
    driver = ProgramDriver(target.program(drafts, ROWS, **program))
    counts = Counts(np.zeros(VOCAB**LENGTH, dtype=np.int64))
    rules = OutputRules(max_new_tokens=40)
    for first in range(0, draws, ROWS):
        seeds = range(first, min(first + ROWS, draws))
        rows = [
            driver.bind(PROMPT, replace(asked, seed=seed), rules, lane)
            for lane, seed in enumerate(seeds)
        ]
        for row in rows:
            driver.prefill(row)
        while open_rows := [row for row in rows if len(row.tokens) < LENGTH]:
            before = sum(len(row.tokens) for row in open_rows)
            driver.decode(open_rows)
            counts.made += drafts * len(open_rows)
            counts.taken += sum(len(r.tokens) for r in open_rows) - before - len(open_rows)
        for row in rows:
            place = int(np.ravel_multi_index(row.tokens[:LENGTH], (VOCAB,) * LENGTH))
            counts.seen[place] += 1
            driver.finish(row)
    return counts


def p_value(expected_law: Any, seen: Any) -> float:
    """Of chi-square; 0 where something came that cannot come."""
    expected = expected_law * seen.sum()
    if seen[expected_law == 0].any():
        return 0.0
    common = expected >= 5
    cells = [(seen[common], expected[common])]
    if expected[~common].sum() > 0:
        cells.append((seen[~common].sum(keepdims=True), expected[~common].sum(keepdims=True)))
    chi_square = sum(float(((o - e) ** 2 / e).sum()) for o, e in cells)
    freedom = sum(len(e) for _, e in cells) - 1
    halves = torch.tensor([freedom / 2, chi_square / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(*halves))


def rooted(ops: Ops = OPS) -> Ops:
    """The planted fault, at temperature 1 without filters: a draft of probability p is taken with
    its root, and all else has the law that it should have."""
    process: Callable[..., Tensor] = ops.process_logits

    def wrong(logits: Tensor, settings: Any, counts: Any, rows: Any, positions: Any,
              drafts: Tensor | None, masks: Any) -> Tensor:  # fmt: skip
        processed = process(logits, settings, counts, rows, positions, drafts, masks)
        if drafts is None or not drafts.numel():
            return processed
        width = drafts.shape[1] + 1
        laws = processed.view(-1, width, processed.shape[1]).softmax(-1)
        index = drafts.long().clamp_min(0).unsqueeze(2)
        taken = laws[:, :-1].gather(2, index)
        others = (1 - taken.sqrt()) / (1 - taken)
        altered = (laws[:, :-1] * others).scatter(2, index, taken.sqrt())
        real = (drafts >= 0).unsqueeze(2)
        laws[:, :-1] = torch.where(real, altered, laws[:, :-1])
        return laws.log().view_as(processed)

    return replace(ops, process_logits=wrong)


def checks(
    draws: int, drafts: int, only: str | None = None, **program: Any
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What was found under each name; ``passed`` says whether it should be so."""
    target = TinyTarget.random(MODEL_SEED)
    planted = {"ops": rooted()}
    cases = [(name, asked, {}) for name, asked in SETTINGS.items()]
    cases.append((PLANTED, SETTINGS["plain temperature"], planted))
    for name, asked, fault in (case for case in cases if only in (None, case[0])):
        started = time.perf_counter()
        exact = joint_law(target, asked)
        count = draws // PLANTED_SHARE if fault else draws
        counts = draw(target, asked, count, drafts, **fault, **program)
        p = p_value(exact, counts.seen)
        yield (
            name,
            {
                "p": p,
                "passed": p < SEEN_P if fault else p > LEAST_P,
                "draws": int(counts.seen.sum()),
                "cells": int((exact * count >= 5).sum()),
                "acceptance": round(counts.taken / max(1, counts.made), 3),
                "seconds": round(time.perf_counter() - started, 1),
            },
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=50_000)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--queued", action="store_true", help="rounds as on a GPU")
    parser.add_argument("--head", action="store_true", help="drafts of an MTP head")
    parser.add_argument("--only", choices=(*SETTINGS, PLANTED))
    args = parser.parse_args()
    report = dict(checks(args.draws, args.drafts, args.only, head=args.head, queued=args.queued))
    units, drafter = "queued" if args.queued else "eager", "head" if args.head else "table"
    print_report(
        {"drafts": args.drafts, "units": units, "drafter": drafter, **report},
        all(entry["passed"] for entry in report.values()),
    )


if __name__ == "__main__":
    main()
