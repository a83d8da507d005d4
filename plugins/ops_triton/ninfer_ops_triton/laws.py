"""Sampling laws of processed logits, written out without sorting the vocabulary.

The same kernels as a draw's settle the cuts; the law has the very masses that a draw draws from.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ninfer_core.ops.contracts.values import SamplingRows
from ninfer_ops_triton.draws import (
    BINS,
    BLOCK,
    CANDIDATES,
    FEW,
    Scratch,
    check_logits,
    entries_of,
)
from ninfer_ops_triton.kernels import cut, draw, law, process
from ninfer_ops_triton.launch import cdiv, launch, multiprocessors


def sampling_law(logits: Tensor, rows: SamplingRows) -> Tensor:
    check_logits(logits)
    count, vocabulary = logits.shape
    s = Scratch.empty(logits, cdiv(vocabulary, BLOCK), copies=False)
    made = torch.empty((count, vocabulary), dtype=torch.float32, device=logits.device)
    shares = torch.empty((count, law.SHARES.value), dtype=torch.int64, device=logits.device)
    entries, blocks = entries_of(logits, rows.seeds.shape[0]), s.best.shape[1]
    sizes = {"BLOCK": BLOCK, "BLOCKS": triton.next_power_of_2(blocks), "dependent": True}
    values = (logits, s.processed, s.plain)
    shape = (logits.stride(0), vocabulary, vocabulary)
    launch(
        process.summarise_rows, (count, blocks), logits, s.best, s.finite, s.plain, s.histogram,
        s.found, logits.stride(0), vocabulary, BINS=BINS, BLOCK=BLOCK, dependent=True,
    )  # fmt: skip
    launch(
        draw.weigh_rows, (count, blocks), *values, s.best, s.finite, s.masses, s.kept, s.histogram,
        entries, rows.temperature, rows.top_k, rows.top_p, rows.min_p, *shape, BINS=BINS, **sizes,
    )  # fmt: skip
    launch(
        draw.gather_candidates, (count, blocks), *values, s.best, s.finite, s.masses, s.histogram,
        s.found, s.candidates, entries, rows.temperature, rows.top_k, rows.top_p, *shape,
        CANDIDATES=CANDIDATES, BINS=BINS, **sizes,
    )  # fmt: skip
    launch(
        law.settle_rows, (count,), s.best, s.finite, s.masses, s.kept, s.found, s.candidates,
        s.state, s.sums, shares, entries, rows.temperature, rows.top_k, rows.top_p, rows.min_p,
        blocks, SUMS=cut.SUMS.value, SMALL=FEW, CANDIDATES=CANDIDATES,
        BLOCKS=sizes["BLOCKS"], warps=8, dependent=True,
    )  # fmt: skip
    team = (count, min(blocks, cdiv(2 * multiprocessors(), count)))
    for step in range(cut.STEPS.value):
        launch(
            cut.narrow_rows, team, *values, s.best, s.state, s.sums, entries, rows.temperature,
            rows.top_p, step, *shape, blocks, **sizes,
        )  # fmt: skip
    launch(
        cut.weigh_kept, team, *values, s.best, s.state, s.sums, s.kept, s.finite, entries,
        rows.temperature, rows.min_p, *shape, blocks, **sizes,
    )  # fmt: skip
    launch(
        law.law_rows, (count, blocks), *values, s.best, s.state, s.sums, s.kept, s.finite, shares,
        made, entries, rows.temperature, rows.min_p, *shape, **sizes,
    )  # fmt: skip
    return made
