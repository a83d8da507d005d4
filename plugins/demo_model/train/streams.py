"""Training batches, drawn by worker processes so that the device never waits for them.

Imports no torch, so that workers stay small.
"""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Full
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ninfer_demo_model.tasks import Case, draw
from train.rendering import Encoder

Row = tuple[list[int], int]


@dataclass(frozen=True, slots=True)
class Stream:
    """Batches of one shape: `rows` cases of at most `length` tokens, from weighted families."""

    name: str
    length: int
    rows: int
    workers: int
    families: Mapping[str, float]


SHORT = Stream(
    "short",
    112,
    512,
    6,
    {
        "copy": 1.0,
        "reverse": 1.5,
        "sort": 1.5,
        "arithmetic": 1.5,
        "wide_sum": 0.5,
        "count": 1.0,
        "recall_single": 1.0,
        "recall_bound": 4.0,
        "extract": 1.2,
        "system_format": 1.5,
        "think": 1.5,
        "talk": 0.1,
    },
)
MIDDLE = Stream(
    "middle", 464, 96, 5, {"tools": 1.0, "recall_turns": 1.0, "tool_result": 0.1, "no_tool": 0.1}
)
LONG = Stream("long", 2080, 14, 4, {"recall_medium": 1.0, "recall_long": 1.0})

THINKING_SHARE = 0.12
"""How often a family other than `think` is drawn in thinking mode."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Right-padded rows and, for every token of a reply, where its prediction stands.

    ids: [B, T]. at: flat index of the position that predicts each label. labels, owners: [N], an
    owner being the label's row. weights: [N], summing to 1 over the batch.
    """

    ids: NDArray[np.int16]
    at: NDArray[np.int64]
    labels: NDArray[np.int64]
    owners: NDArray[np.int64]
    weights: NDArray[np.float32]


def pack(rows: list[Row], length: int) -> Packed:
    """Pad `rows` to `length`; a reply counts by the square root of its length."""
    ids = np.zeros((len(rows), length), np.int16)
    at, labels, owners, weights = [], [], [], []
    for number, (tokens, prompt) in enumerate(rows):
        size = len(tokens) - prompt
        ids[number, : len(tokens)] = tokens
        at.append(np.arange(prompt - 1, len(tokens) - 1) + number * length)
        labels.append(np.asarray(tokens[prompt:], np.int64))
        owners.append(np.full(size, number))
        weights.append(np.full(size, size**-0.5, np.float32))
    weight = np.concatenate(weights)
    return Packed(
        ids,
        np.concatenate(at),
        np.concatenate(labels),
        np.concatenate(owners),
        weight / weight.sum(),
    )


def training_case(family: str, rng: Random) -> Case:
    """A case of the training split, now and then in thinking mode."""
    thinking = family == "think" or rng.random() < THINKING_SHARE
    return draw(family, rng, "any" if family == "talk" else "train", thinking=thinking)


class Loader:
    """Worker processes of one stream, and the shared weights by which they choose families.

    The processes are forked: make every loader before the device is first used.
    """

    def __init__(self, stream: Stream, tokenizer: Path, seed: int) -> None:
        context = mp.get_context("fork")
        self.stream = stream
        self._weights = context.Array("d", list(stream.families.values()))
        self._queue: Queue[Packed] = context.Queue(24)
        self._processes = [
            context.Process(target=self._work, args=(tokenizer, f"{seed}/{worker}"), daemon=True)
            for worker in range(stream.workers)
        ]
        for process in self._processes:
            process.start()

    def next(self) -> Packed:
        """The next batch; waits at most two minutes."""
        return self._queue.get(timeout=120)

    def favour(self, accuracy: Mapping[str, float]) -> None:
        """Draw families more often the further they are from perfect."""
        for place, (family, base) in enumerate(self.stream.families.items()):
            missing = 1.0 - accuracy.get(family, 0.9)
            self._weights[place] = base * (0.35 + min(1.0, 3.0 * missing))

    def close(self) -> None:
        """End the workers."""
        for process in self._processes:
            process.terminate()
            process.join()

    def _work(self, tokenizer: Path, seed: str) -> None:
        encoder = Encoder(Tokenizer.from_file(str(tokenizer)))
        rng = Random(f"{self.stream.name}/{seed}")
        families: Any = list(self.stream.families)
        while True:
            rows: list[Row] = []
            while len(rows) < self.stream.rows:
                family = rng.choices(families, list(self._weights[:]))[0]
                row = encoder.encode(training_case(family, rng))
                if len(row[0]) <= self.stream.length:
                    rows.append(row)
            self._put(pack(rows, self.stream.length))

    def _put(self, batch: Packed) -> None:
        while True:
            try:
                self._queue.put(batch, timeout=60)
                return
            except Full:
                continue
