"""Train the multi-token prediction head on the frozen target.

Run `python -m train.train_mtp --target DIR --out DIR` in the directory of the demo model.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer

from ninfer_demo_model.tasks import FAMILIES, draw
from train.lines import emit
from train.model import Batch, build
from train.mtp import MtpHead, agreement, divergence, drafted_logits
from train.muon import Optimizer
from train.rendering import Encoder
from train.saving import load_weights, put, restore
from train.streams import MIDDLE, SHORT, Loader, pack
from train.train import scaled, special_ids

SAVE_EVERY_S = 60.0
WARMUP_STEPS = 100
HOLD = 0.4


def main() -> None:
    """Set up from the command line, train until the time is used up, save."""
    options = _parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    loaders = [
        Loader(scaled(stream, options.scale), options.tokenizer, options.seed)
        for stream in (SHORT, MIDDLE)
    ]
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        _train(options, loaders, device)
    finally:
        for loader in loaders:
            loader.close()


def frozen_target(tokenizer: Path, folder: Path, device: torch.device) -> Any:
    """The trained target, rounded to bf16 as its checkpoint will be."""
    model = build(special_ids(tokenizer))
    rounded = {name: value.bfloat16().float() for name, value in load_weights(folder).items()}
    restore(model, rounded)
    return model.to(device).eval().requires_grad_(False)


def _train(options: argparse.Namespace, loaders: list[Loader], device: torch.device) -> None:
    model = frozen_target(options.tokenizer, options.target, device)
    head = MtpHead(model.config).to(device)
    optimizer, probes = Optimizer(head, options.peak), _probes(options, device)
    started, saved, step = time.monotonic(), 0.0, 0
    while (elapsed := time.monotonic() - started) < options.seconds:
        warm = min(1.0, (step + 1) / WARMUP_STEPS)
        left = min(1.0, (1.0 - elapsed / options.seconds) / (1.0 - HOLD))
        loss = _step(model, head, optimizer, loaders, warm * left)
        step += 1
        if step % options.report == 0:
            _report(model, head, probes, seconds=round(elapsed, 1), step=step, loss=float(loss))
        if elapsed - saved > SAVE_EVERY_S:
            put(options.out / "mtp.pt", _state(head))
            saved = elapsed
    put(options.out / "mtp.pt", _state(head))
    _report(model, head, probes, seconds=round(elapsed, 1), step=step)


def _step(
    model: Any, head: MtpHead, optimizer: Optimizer, loaders: list[Loader], factor: float
) -> torch.Tensor:
    device = next(head.parameters()).device
    losses = []
    for loader in loaders:
        batch = Batch.of(loader.next(), device)
        with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
            wanted, drafted = drafted_logits(model, head, batch)
        loss = divergence(wanted, drafted, batch.weights)
        torch.autograd.backward(loss)
        losses.append(loss.detach())
    optimizer.step(factor)
    return torch.stack(losses).mean()


def _probes(options: argparse.Namespace, device: torch.device) -> dict[str, Batch]:
    encoder, found = Encoder(Tokenizer.from_file(str(options.tokenizer))), {}
    for family in FAMILIES:
        rng = Random(f"probe/{family}")
        name = "recall_single" if family == "recall" else family
        rows = [encoder.encode(draw(name, rng, "heldout")) for _ in range(options.cases)]
        found[family] = Batch.of(pack(rows, max(len(ids) for ids, _ in rows)), device)
    return found


def _report(model: Any, head: MtpHead, probes: dict[str, Batch], **line: Any) -> None:
    emit(**line, agreement={family: agreement(model, head, b) for family, b in probes.items()})


def _state(head: MtpHead) -> dict[str, torch.Tensor]:
    return {name: value.detach().float().cpu() for name, value in head.state_dict().items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="folder of a training run")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, default=Path("checkpoint/tokenizer.json"))
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--peak", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--cases", type=int, default=64, help="held-out cases per family")
    parser.add_argument("--report", type=int, default=100, help="steps between reports")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the batch rows")
    return parser


if __name__ == "__main__":
    main()
