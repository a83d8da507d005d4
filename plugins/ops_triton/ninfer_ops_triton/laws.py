"""Sampling laws of processed logits, written out without sorting the vocabulary.

The same kernels as a draw's settle the cuts; the law has the very masses that a draw draws from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.ops.contracts.values import SamplingRows
from ninfer_ops_triton.draws import (
    BINS,
    BLOCK,
    CANDIDATES,
    FEW,
    Scratch,
    check_logits,
    common,
    entries_of,
    find_candidates,
    narrow,
)
from ninfer_ops_triton.kernels import cut, law, process
from ninfer_ops_triton.launch import cdiv, launch


def sampling_law(logits: Tensor, rows: SamplingRows) -> Tensor:
    check_logits(logits)
    count, vocabulary = logits.shape
    s = Scratch.empty(logits, cdiv(vocabulary, BLOCK), copies=False)
    made = torch.empty((count, vocabulary), dtype=torch.float32, device=logits.device)
    shares = torch.empty((count, law.SHARES.value), dtype=torch.int64, device=logits.device)
    entries, blocks = entries_of(logits, rows.seeds.shape[0]), s.best.shape[1]
    values, shape, sizes = common(logits, vocabulary, s)
    launch(
        process.summarise_rows, (count, blocks), logits, s.best, s.finite, s.plain, s.histogram,
        s.found, logits.stride(0), vocabulary, BINS=BINS, BLOCK=BLOCK, dependent=True,
    )  # fmt: skip
    find_candidates(logits, vocabulary, s, rows, entries)
    launch(
        law.settle_rows, (count,), s.best, s.finite, s.masses, s.kept, s.found, s.candidates,
        s.state, s.sums, shares, entries, rows.temperature, rows.top_k, rows.top_p, rows.min_p,
        blocks, SUMS=cut.SUMS.value, SMALL=FEW, CANDIDATES=CANDIDATES,
        BLOCKS=sizes["BLOCKS"], warps=8, dependent=True,
    )  # fmt: skip
    narrow(logits, vocabulary, s, rows, entries)
    launch(
        law.law_rows, (count, blocks), *values, s.best, s.state, s.sums, s.kept, s.finite, shares,
        made, entries, rows.temperature, rows.min_p, *shape, **sizes,
    )  # fmt: skip
    return made
