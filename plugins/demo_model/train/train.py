"""Train the demo model's target. Resumable; saves every minute; prints JSON lines.

Run `python -m train.train --out DIR` in the directory of the demo model; see README.md.
"""

from __future__ import annotations

import argparse
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from train.build_tokenizer import SPECIAL
from train.lines import emit
from train.model import Batch, build, loss_of
from train.muon import Optimizer
from train.probes import WATCHED, Probes
from train.saving import load_optimizer, load_weights, restore, save_state
from train.streams import LONG, MIDDLE, SHORT, Loader, Stream

SAVE_EVERY_S = 60.0
WARMUP_STEPS = 150
SHARES = {"short": 1.0, "middle": 0.6, "long": 0.5}
EVERY = {"short": 1, "middle": 2, "long": 4}
"""In which steps a stream joins: few long rows cost as much as many short ones."""


@dataclass(slots=True)
class Run:
    """One call: what is trained, how long, and where its files go."""

    options: argparse.Namespace
    model: Any
    optimizer: Optimizer
    loaders: dict[str, Loader]
    probes: Probes
    device: torch.device
    step: int = 0
    started: float = field(default_factory=time.monotonic)
    saved: float = 0.0
    probed: float = 0.0
    accuracy: dict[str, float] = field(default_factory=dict)

    def elapsed(self) -> float:
        """Seconds since training began."""
        return time.monotonic() - self.started

    def precision(self) -> AbstractContextManager[Any]:
        """bf16 products on the GPU; the CPU rehearsal stays in fp32."""
        return torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda")

    def rate(self) -> float:
        """Share of the peak rate: warm-up, a plateau, then a straight line down to the end."""
        options = self.options
        used = min(1.0, self.elapsed() / options.seconds)
        warm = min(1.0, (self.step + 1) / WARMUP_STEPS)
        falling = max(0.0, (used - options.hold) / (1.0 - options.hold))
        return float(warm * options.start * (1.0 - falling * (1.0 - options.end)))

    def streams(self) -> list[str]:
        """The streams of this step; the long one waits until short recall has begun."""
        waits = not self.options.resume and self.elapsed() < 0.12 * self.options.seconds
        names = [name for name in self.loaders if self.step % EVERY[name] == 0]
        return [name for name in names if name != "long" or not waits]

    def advance(self) -> dict[str, torch.Tensor]:
        """One optimizer step over one batch of each stream."""
        losses = {}
        for name in self.streams():
            batch = Batch.of(self.loaders[name].next(), self.device)
            with self.precision():
                losses[name], loss = loss_of(self.model, batch)
            torch.autograd.backward(loss * SHARES[name])
        self.optimizer.step(self.rate())
        self.step += 1
        return losses

    def report(self, losses: dict[str, torch.Tensor], **more: Any) -> None:
        """One JSON line to stdout and to the log."""
        line = emit(
            seconds=round(self.elapsed(), 1),
            step=self.step,
            rate=round(self.rate(), 4),
            loss={name: round(float(loss), 5) for name, loss in losses.items()},
            **more,
        )
        with (self.options.out / "log.jsonl").open("a") as log:
            log.write(line + "\n")

    def probe(self, losses: dict[str, torch.Tensor]) -> None:
        """Measure held-out accuracy and shift the mixture towards what is still wrong."""
        with self.precision():
            accuracy = self.probes.accuracy(self.model)
        for loader in self.loaders.values():
            loader.favour(accuracy)
        self.report(losses, accuracy=accuracy)
        self.accuracy = accuracy
        self.probed = self.elapsed()

    def save(self) -> None:
        """Write everything that resuming needs."""
        progress = {"step": self.step, "seconds": self.elapsed()}
        save_state(self.options.out, self.model, self.optimizer, progress)
        self.saved = self.elapsed()

    def train(self) -> None:
        """Until the time or the number of steps is used up."""
        options = self.options
        losses: dict[str, torch.Tensor] = {}
        while self.elapsed() < options.seconds and self.step < options.steps:
            losses |= self.advance()
            if self.step % options.report == 0:
                self.report(losses)
            if self.elapsed() - self.probed > options.probe:
                self.probe(losses)
            if self.elapsed() - self.saved > SAVE_EVERY_S:
                self.save()
        self.save()
        self.probe(losses)
        if min(self.accuracy.values()) < options.require:
            raise SystemExit(f"a family is below {options.require}: {self.accuracy}")


def main() -> None:
    """Set up one run from the command line."""
    options = _parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    streams = _streams(options)
    loaders = {s.name: Loader(s, options.tokenizer, options.seed) for s in streams}
    run = _set_up(options, loaders)
    try:
        run.train()
    finally:
        for loader in loaders.values():
            loader.close()


def _set_up(options: argparse.Namespace, loaders: dict[str, Loader]) -> Run:
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(special_ids(options.tokenizer)).to(device)
    optimizer = Optimizer(model, options.peak)
    if options.resume:
        restore(model, load_weights(options.resume))
        optimizer.load(load_optimizer(options.resume)["optimizer"])
    watched = tuple(f for f in WATCHED if not options.only or f in options.only)
    probes = Probes(options.tokenizer, options.cases, device, watched)
    size = sum(parameter.numel() for parameter in model.parameters())
    emit(parameters=size, device=str(device), delta_rule="own chunk form")
    return Run(options, model, optimizer, loaders, probes, device)


def special_ids(tokenizer: Path) -> dict[str, int]:
    """Ids of the special tokens."""
    vocabulary = Tokenizer.from_file(str(tokenizer)).get_vocab()
    return {name: vocabulary[name] for name in SPECIAL}


def _streams(options: argparse.Namespace) -> list[Stream]:
    found = []
    for stream in (SHORT, MIDDLE, LONG):
        kept = {f: w for f, w in stream.families.items() if not options.only or f in options.only}
        if kept:
            found.append(replace(scaled(stream, options.scale), families=kept))
    return found


def scaled(stream: Stream, share: float) -> Stream:
    """The stream with fewer rows and workers, for a rehearsal."""
    rows, workers = int(stream.rows * share), int(stream.workers * share)
    return replace(stream, rows=max(1, rows), workers=max(1, workers))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, default=Path("checkpoint/tokenizer.json"))
    parser.add_argument("--resume", type=Path, help="folder of an earlier run")
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--peak", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--start", type=float, default=1.0, help="share of the peak at first")
    parser.add_argument("--end", type=float, default=0.05, help="share of `start` at the end")
    parser.add_argument("--hold", type=float, default=0.5, help="share of the time on the plateau")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=128, help="held-out cases per family")
    parser.add_argument("--probe", type=float, default=25.0, help="seconds between measurements")
    parser.add_argument("--report", type=int, default=100, help="steps between reports")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the batch rows")
    parser.add_argument("--require", type=float, default=0.0, help="fail below this accuracy")
    parser.add_argument("--only", nargs="*", help="restrict training to these families")
    return parser


if __name__ == "__main__":
    main()
