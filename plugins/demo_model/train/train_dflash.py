"""Train a DFlash or DFlash2 drafter on the frozen target, on one core of a CPU.

Run `python -m train.train_dflash --kind dflash --out DIR` in the directory of the demo model. The
target is the committed checkpoint; weights are saved once a minute in fp32.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from ninfer_demo_model.tasks import FAMILIES, draw
from train.acceptance import Tally
from train.dflash import Drafter
from train.drafting import DRAFTERS, Drafting, count_block_rounds
from train.geometry import drafter_configuration
from train.lines import emit
from train.model import build
from train.muon import Optimizer
from train.rendering import Encoder
from train.saving import put, restore
from train.streams import LONG, MIDDLE, SHORT, Stream, training_case
from train.train import special_ids

SAVE_EVERY_S = 60.0
WARMUP_STEPS = 60
EVERY = {"middle": 4, "long": 21}
ROWS = {"short": 32, "middle": 5, "long": 1}
"""In which steps a stream is drawn instead of the short one, and its rows."""

SHARES = {"copy": 1.5, "reverse": 2.0, "sort": 2.0, "arithmetic": 0.5, "wide_sum": 0.2}
SHARES |= {"count": 0.5, "recall_single": 0.5, "recall_bound": 1.0, "extract": 1.5}
SHARES |= {"system_format": 1.5, "think": 2.0, "talk": 0.1}
"""Families of the short stream: those with long replies, where a block has something to win."""

HEAD_SCALE = 0.3
"""Of the target's final norm, with which the drafter's begins: small, so that a drafter that knows
nothing yet is not sure of it."""

POOL = 8
"""Batches of the short stream drawn at once and sorted by length, so that little is padding."""

KINDS = ("dflash", "dflash2")


def frozen_target(checkpoint: Path) -> Any:
    """The committed target in fp32, with the parallel form of the delta rule."""
    model = build(special_ids(checkpoint / "tokenizer.json"))
    stored = load_file(checkpoint / "model.safetensors")
    own = {name: v.float() for name, v in stored.items() if not name.startswith("mtp.")}
    restore(model, own)
    return model.eval().requires_grad_(False)


def drafting_of(kind: str, checkpoint: Path) -> Drafting:
    """A fresh drafter of ``kind`` beside the frozen target."""
    size = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).get_vocab_size()
    config = drafter_configuration(kind, size)
    drafter = DRAFTERS[config["architectures"][0]](config)
    return Drafting.of(frozen_target(checkpoint), config, drafter, size)


class Batches:
    """Encoded cases of the training split, by stream."""

    def __init__(self, encoder: Encoder, seed: int) -> None:
        self._encoder, self._rng = encoder, Random(seed)
        self._short: list[list[tuple[list[int], int]]] = []

    def next(self, step: int) -> list[tuple[list[int], int]]:
        """(ids, prompt length) of each row."""
        for stream in (LONG, MIDDLE):
            if step % EVERY[stream.name] == EVERY[stream.name] - 1:
                return self._draw(stream, ROWS[stream.name])
        if not self._short:
            short = replace(SHORT, families=SHARES)
            rows = sorted(self._draw(short, POOL * ROWS["short"]), key=lambda row: len(row[0]))
            size = ROWS["short"]
            self._short = [rows[first : first + size] for first in range(0, len(rows), size)]
            self._rng.shuffle(self._short)
        return self._short.pop()

    def _draw(self, stream: Stream, count: int) -> list[tuple[list[int], int]]:
        rows: list[tuple[list[int], int]] = []
        families: list[Any] = list(stream.families)
        while len(rows) < count:
            family = self._rng.choices(families, list(stream.families.values()))[0]
            row = self._encoder.encode(training_case(family, self._rng))
            if len(row[0]) <= stream.length:
                rows.append(row)
        return rows


def main() -> None:
    """Set up from the command line, train until the time is used up, save."""
    options = _parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    subject = drafting_of(options.kind, options.checkpoint)
    if options.start:
        state = torch.load(options.start, map_location="cpu")
        _, surplus = subject.drafter.load_state_dict(state, strict=False)
        if surplus:
            raise ValueError(f"{options.start} holds {surplus}, which the drafter lacks")
    else:
        norm = subject.model.model.norm.weight
        subject.drafter.norm.weight.data.copy_(HEAD_SCALE * (1.0 + norm))
    last = max(subject.taps.layers) + 1
    subject.model.model.layers = subject.model.model.layers[:last]
    emit(parameters=sum(p.numel() for p in subject.drafter.parameters()), kind=options.kind)
    encoder = Encoder(Tokenizer.from_file(str(options.checkpoint / "tokenizer.json")))
    probes = _probes(encoder, options.cases)
    optimizer = Optimizer(subject.drafter, options.peak)
    _train(options, subject, Batches(encoder, options.seed), optimizer, probes)


def _train(
    options: argparse.Namespace,
    subject: Drafting,
    batches: Batches,
    optimizer: Optimizer,
    probes: dict[str, list[tuple[list[int], int]]],
) -> None:
    generator = torch.Generator().manual_seed(options.seed)
    started, saved, step, mean = time.process_time(), 0.0, 0, 0.0
    while (elapsed := time.process_time() - started) < options.seconds:
        warm = min(1.0, (step + 1) / WARMUP_STEPS)
        left = min(1.0, (1.0 - elapsed / options.seconds) / (1.0 - options.hold))
        rows = batches.next(step)
        ids, ends = _tensors(rows)
        loss = subject.loss(ids, ends, _anchors(rows, options.anchors, generator))
        torch.autograd.backward(loss)
        optimizer.step(warm * left)
        step += 1
        mean += (float(loss.detach()) - mean) / min(step, 50)
        if step % options.report == 0:
            emit(seconds=round(elapsed, 1), step=step, loss=round(mean, 4))
        if elapsed - saved > SAVE_EVERY_S:
            put(options.out / f"{options.kind}.pt", _state(subject.drafter))
            saved = elapsed
    put(options.out / f"{options.kind}.pt", _state(subject.drafter))
    _report(subject, probes, step=step)


def _tensors(rows: list[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
    """Right-padded ids [B, T] and lengths [B]."""
    ends = torch.tensor([len(ids) for ids, _ in rows])
    padded = torch.zeros(len(rows), int(ends.max()), dtype=torch.long)
    for place, (ids, _) in enumerate(rows):
        padded[place, : len(ids)] = torch.tensor(ids)
    return padded, ends


def _anchors(rows: list[tuple[list[int], int]], count: int, generator: torch.Generator) -> Tensor:
    """[B, N <= count] different positions inside the assistant's turn that have a token behind
    them, -1 where there are no more; the turn's first is always among them, as every decoding
    begins there."""
    found = torch.full((len(rows), count), -1)
    for place, (ids, prompt) in enumerate(rows):
        room = len(ids) - 1 - prompt
        if room > 0:
            others = (torch.randperm(room - 1, generator=generator) + 1)[: count - 1]
            found[place, 0] = prompt
            found[place, 1 : 1 + len(others)] = others + prompt
    return found[:, (found >= 0).any(0)]


def _probes(encoder: Encoder, cases: int) -> dict[str, list[tuple[list[int], int]]]:
    found = {}
    for family in FAMILIES:
        rng = Random(f"probe/{family}")
        name = "recall_single" if family == "recall" else family
        found[family] = [encoder.encode(draw(name, rng, "heldout")) for _ in range(cases)]
    return found


def _report(subject: Drafting, probes: dict[str, list[tuple[list[int], int]]], **line: Any) -> None:
    """Tokens per round of every family, over true replies."""
    lengths = {}
    for family, rows in probes.items():
        tally = Tally(subject.block_size - 1)
        for ids, prompt in rows:
            count_block_rounds(subject, ids, prompt, tally)
        lengths[family] = round(1 + sum(tally.accepted) / max(1, tally.rounds), 3)
    emit(**line, tokens_per_round=lengths)


def _state(drafter: Drafter) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in drafter.state_dict().items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="weights to begin with, such as dflash.pt")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint"))
    parser.add_argument("--seconds", type=float, default=1500.0, help="of this process's CPU time")
    parser.add_argument("--peak", type=float, default=5e-3, help="peak learning rate")
    parser.add_argument("--hold", type=float, default=0.35, help="share of the time at the peak")
    parser.add_argument("--anchors", type=int, default=12, help="blocks per row and step")
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--cases", type=int, default=24, help="held-out cases per family")
    parser.add_argument("--report", type=int, default=50, help="steps between reports")
    return parser


if __name__ == "__main__":
    main()
