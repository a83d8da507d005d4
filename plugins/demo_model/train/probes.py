"""Fixed held-out cases per family, on which training watches its accuracy."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer

from ninfer_demo_model.tasks import FAMILIES, draw
from train.model import Batch, exact_rows
from train.rendering import Encoder
from train.streams import pack

RECALLS = ("recall_single", "recall_bound", "recall_turns", "recall_long")
WATCHED = (
    tuple(name for name in FAMILIES if name != "recall") + RECALLS + ("tool_result", "no_tool")
)


class Probes:
    """`cases` held-out cases of every watched family, encoded once."""

    def __init__(
        self, tokenizer: Path, cases: int, device: torch.device, families: tuple[str, ...]
    ) -> None:
        encoder = Encoder(Tokenizer.from_file(str(tokenizer)))
        self._batches: dict[str, Batch] = {}
        for family in families:
            rng = Random(f"probe/{family}")
            rows = [encoder.encode(draw(family, rng, "heldout")) for _ in range(cases)]
            packed = pack(rows, max(len(ids) for ids, _ in rows))
            self._batches[family] = Batch.of(packed, device)

    def accuracy(self, model: Any) -> dict[str, float]:
        """Share of exactly predicted replies per family."""
        model.eval()
        found = {family: round(exact_rows(model, b), 4) for family, b in self._batches.items()}
        model.train()
        return found
