"""Stage `model`: random models against transformers, the demo model's answers, batch invariance.

A tolerance is never a constant: our log-probabilities may be as far from transformers' in float32
as transformers' own in bfloat16 are, on the same tokens of the same weights.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _oracle import SHAPES, checkpoint, load, log_probabilities, prepare
from _stage import Facts, Stage
from gpu_answers import answer_steps, convert_all
from gpu_invariance import invariance_steps
from torch import Tensor

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.events import GenerationResult
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams, TokenLogprobs
from ninfer_qwen3_5.convert import convert_checkpoint

LENGTHS = (1, 5, 63, 64, 65, 129, 300)
CHUNK = 128
NEW = 24
TOP = 20
RMS_RATIO, LARGEST_RATIO, AGREEMENT = 1.5, 3.0, 0.02
"""Bounds against transformers in bfloat16: root mean square error, largest error, and how much
less often the likeliest token may be the same."""

TIE = 4.0
"""Two greedy tokens are as good when their log-probabilities differ by less than this many times
the largest error that transformers makes in bfloat16."""


def steps(stage: Stage, asked: argparse.Namespace) -> None:
    prepare()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for shape in SHAPES:
            if shape != "0.8b":
                run = partial(parity, place, shape, asked.device, LENGTHS[: 3 if asked.tiny else 9])
                stage.run(f"parity, {shape}", run)
        if not asked.tiny:
            large = partial(parity, place, "0.8b", asked.device, (1, 17, 300, 1100), 1024, False)
            stage.run("parity, 0.8b", large)
        if stage.wants("answers") or stage.wants("invariance"):
            artifacts = convert_all(stage, place)
            if stage.wants("answers"):
                answer_steps(stage, asked, artifacts)
            invariance_steps(stage, asked, artifacts)


@contextlib.contextmanager
def opened(path: str | Path, device: str, **options: Any) -> Iterator[Engine]:
    settings: dict[str, Any] = {"max_concurrency": 8, "max_pending": 4096, "queue_timeout": None}
    settings |= {"cache_policy": "off"} | options
    with Engine.open(path, EngineOptions(devices=(device,), **settings)) as engine:
        yield engine


def parity(
    place: Path,
    shape: str,
    device: str,
    lengths: tuple[int, ...],
    chunk: int = CHUNK,
    on_cpu: bool = True,
) -> Facts:
    """Prompts and greedy answers of a random model, every position, against transformers."""
    path = checkpoint(shape, place)
    artifact = path.with_suffix(".ninfer")
    convert_checkpoint(path, artifact, recipe="bf16")
    results, prompts, vocabulary = answers(artifact, device, lengths, chunk)
    exact, rounded = (load(path, dtype, device) for dtype in (torch.float32, torch.bfloat16))
    ours, theirs = Errors(), Errors()
    for prompt, result in zip(prompts, results, strict=True):
        tokens = [*prompt, *result.token_ids]
        rows = [*result.prompt_logprobs[1:], *result.logprobs]
        assert [row.token_id for row in rows if row] == tokens[1:]
        ids, values = _entries(rows)
        wanted = log_probabilities(exact, tokens[:-1], vocabulary)
        other = log_probabilities(rounded, tokens[:-1], vocabulary)
        right, best = wanted.gather(1, ids.to(wanted.device)).cpu(), wanted.argmax(-1).cpu()
        ours.add(values, right, ids[:, 1], best)
        theirs.add(other.gather(1, ids.to(other.device)).cpu(), right, other.argmax(-1).cpu(), best)
    facts = _compared(ours, theirs)
    if on_cpu:
        facts |= _greedy(artifact, lengths, chunk, results, TIE * theirs.largest)
        facts["passed"] &= not facts["greedy_differences_beyond_ties"]
    return facts


def answers(
    artifact: Path, device: str, lengths: tuple[int, ...], chunk: int
) -> tuple[list[GenerationResult], list[list[int]], int]:
    """Greedy answers with log-probabilities of all positions; prompts; addressable tokens."""
    rng = random.Random(len(lengths))
    sampling = SamplingParams(temperature=0.0)
    options = GenerationOptions(
        sampling=sampling, max_new_tokens=NEW, ignore_eos=True, logprobs=TOP, prompt_logprobs=TOP
    )
    context = max(lengths) + NEW + 1
    with opened(artifact, device, prefill_chunk=chunk, max_context=context) as engine:
        vocabulary = engine.load_summary().vocab_size
        prompts = [[rng.randrange(vocabulary) for _ in range(length)] for length in lengths]
        handles = [engine.submit(PromptInput(token_ids=ids), options) for ids in prompts]
        return [handle.result() for handle in handles], prompts, vocabulary


class Errors:
    """Differences of log-probabilities from exact ones, and how often the best token agrees."""

    def __init__(self) -> None:
        self.squares = 0.0
        self.count = self.rows = self.same = 0
        self.largest = 0.0

    def add(self, values: Tensor, exact: Tensor, best: Tensor, best_exact: Tensor) -> None:
        """``values`` and ``exact`` f32[n, k]; ``best`` and ``best_exact`` the likeliest, i64[n]."""
        off = (values.double() - exact.double()).abs()
        self.squares += float(off.square().sum())
        self.largest = max(self.largest, float(off.max()))
        self.count += off.numel()
        self.rows += len(off)
        self.same += int((best == best_exact).sum())

    @property
    def rms(self) -> float:
        return (self.squares / max(1, self.count)) ** 0.5

    @property
    def agreement(self) -> float:
        return self.same / max(1, self.rows)


def _entries(rows: Sequence[TokenLogprobs | None]) -> tuple[Tensor, Tensor]:
    """Ids i64[n, 1 + TOP] and log-probabilities f32 of each token and its alternatives."""
    pairs = [
        [(row.token_id, row.logprob), *((top.token_id, top.logprob) for top in row.top)]
        for row in rows
        if row is not None
    ]
    ids = torch.tensor([[token for token, _ in row] for row in pairs])
    return ids, torch.tensor([[value for _, value in row] for row in pairs])


def _compared(ours: Errors, theirs: Errors) -> Facts:
    return {
        "positions": ours.rows,
        "rms": ours.rms,
        "rms_of_bf16": theirs.rms,
        "largest": ours.largest,
        "largest_of_bf16": theirs.largest,
        "same_best": ours.agreement,
        "same_best_of_bf16": theirs.agreement,
        "passed": ours.rms <= RMS_RATIO * theirs.rms
        and ours.largest <= LARGEST_RATIO * theirs.largest
        and ours.agreement >= theirs.agreement - AGREEMENT,
    }


def _greedy(
    artifact: Path,
    lengths: tuple[int, ...],
    chunk: int,
    results: list[GenerationResult],
    tie: float,
) -> Facts:
    """The first token in which each answer differs from the one that the CPU gives in float32."""
    expected, _, _ = answers(artifact, "cpu", lengths, chunk)
    differing, beyond = 0, 0
    for wanted, given in zip(expected, results, strict=True):
        for row, token in zip(wanted.logprobs, given.token_ids, strict=True):
            if row.token_id != token:
                gaps = [row.logprob - top.logprob for top in row.top if top.token_id == token]
                differing += 1
                beyond += not gaps or gaps[0] > tie
                break
    return {
        "answers": len(expected),
        "greedy_differences": differing,
        "greedy_differences_beyond_ties": beyond,
    }
