"""Tokens straight from logits: the largest, or a draw from the sampling law.

A draw takes twelve small launches and no sync: summary and processing, masses, candidates, the
pick, and eight that end at once but for rows whose top-k or top-p cut lies beyond the candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ninfer_core.ops.contracts.values import (
    Drawn,
    DrawPurpose,
    SamplingRows,
    TokenCounts,
    TokenMasks,
)
from ninfer_core.ops.errors import OpError
from ninfer_ops_triton.integers import integers
from ninfer_ops_triton.kernels import argmax, cut, draw, process
from ninfer_ops_triton.launch import cdiv, launch, multiprocessors

BLOCK = 1024
"""Logits a program looks at."""
BINS = 512
CANDIDATES = 1024
"""Tokens of a row among which a cut is settled without another look at the row."""
FEW = 128
"""Candidates that fit a small tile."""
VOCABULARY_LIMIT = 1 << argmax.ID_BITS.value


@dataclass(frozen=True, slots=True)
class Scratch:
    """What the kernels of a draw leave each other, for T rows of ``blocks`` blocks."""

    processed: Tensor
    plain: Tensor
    best: Tensor
    finite: Tensor
    masses: Tensor
    kept: Tensor
    histogram: Tensor
    found: Tensor
    candidates: Tensor
    state: Tensor
    sums: Tensor

    @classmethod
    def empty(cls, logits: Tensor, blocks: int, *, copies: bool) -> Scratch:
        """``copies``: whether there is to be room for processed logits."""
        rows, device = logits.shape[0], logits.device

        def ints(*shape: int) -> Tensor:
            return torch.empty((rows, *shape), dtype=torch.int32, device=device)

        def longs(*shape: int) -> Tensor:
            return torch.empty((rows, *shape), dtype=torch.int64, device=device)

        return cls(
            processed=torch.empty_like(logits) if copies else logits,
            plain=ints(),
            best=longs(blocks),
            finite=ints(blocks),
            masses=longs(blocks),
            kept=longs(blocks),
            histogram=ints(BINS),
            found=ints(),
            candidates=longs(CANDIDATES),
            state=longs(draw.STATE.value),
            sums=longs(cut.SUMS.value),
        )


def argmax_rows(logits: Tensor, addressable: int) -> Drawn:
    check_logits(logits)
    rows, blocks = logits.shape[0], cdiv(addressable, BLOCK)
    best = torch.empty((rows, blocks), dtype=torch.int64, device=logits.device)
    drawn = empty_drawn(logits)
    launch(
        argmax.argmax_blocks, (rows, blocks), logits, best, logits.stride(0), logits.shape[1],
        addressable, BLOCK=BLOCK, dependent=True,
    )  # fmt: skip
    launch(
        argmax.argmax_finish, (rows,), best, drawn.tokens, drawn.broken, blocks,
        BLOCKS=triton.next_power_of_2(blocks), dependent=True,
    )  # fmt: skip
    return drawn


def draw_rows(
    logits: Tensor,
    addressable: int,
    settings: SamplingRows,
    counts: TokenCounts,
    lanes: Tensor,
    positions: Tensor,
    purpose: DrawPurpose,
    masks: TokenMasks | None = None,
    drafts: Tensor | None = None,
) -> Drawn:
    """Ids from ``addressable`` on are never drawn, whatever their logits."""
    check_logits(logits)
    scratch = Scratch.empty(logits, cdiv(addressable, BLOCK), copies=True)
    process_into(
        logits, scratch.processed, settings, counts, lanes, lanes, positions, drafts, masks,
        addressable=addressable, scratch=scratch,
    )  # fmt: skip
    return draw_processed(logits, addressable, scratch, settings, lanes, positions, purpose)


def sample_tokens(
    logits: Tensor, rows: SamplingRows, positions: Tensor, purpose: DrawPurpose
) -> Tensor:
    check_logits(logits)
    vocabulary = logits.shape[1]
    scratch = Scratch.empty(logits, cdiv(vocabulary, BLOCK), copies=False)
    launch(
        process.summarise_rows, tuple(scratch.best.shape), logits, scratch.best, scratch.finite,
        scratch.plain, scratch.histogram, scratch.found, logits.stride(0), vocabulary,
        BINS=BINS, BLOCK=BLOCK, dependent=True,
    )  # fmt: skip
    entries = entries_of(logits, rows.seeds.shape[0])
    return draw_processed(logits, vocabulary, scratch, rows, entries, positions, purpose).tokens


def process_logits(
    logits: Tensor,
    rows: SamplingRows,
    counts: TokenCounts,
    lanes: Tensor,
    positions: Tensor,
    drafts: Tensor | None = None,
    masks: TokenMasks | None = None,
) -> Tensor:
    check_logits(logits)
    processed = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    entries = entries_of(logits, lanes.shape[0])
    lanes = lanes.index_select(0, entries)
    process_into(logits, processed, rows, counts, entries, lanes, positions, drafts, masks)
    return processed


def process_into(
    logits: Tensor,
    processed: Tensor,
    settings: SamplingRows,
    counts: TokenCounts,
    entries: Tensor,
    lanes: Tensor,
    positions: Tensor,
    drafts: Tensor | None,
    masks: TokenMasks | None,
    *,
    addressable: int | None = None,
    scratch: Scratch | None = None,
) -> None:
    """Row t by entry ``entries[t]`` of the settings and lane ``lanes[t]`` of the counts; with
    ``scratch`` also the summary that a draw starts from."""
    rows, vocabulary = logits.shape
    limit = vocabulary if addressable is None else addressable
    unused = logits if scratch is None else None
    biases, bans = settings.bias_ids.shape[1], settings.banned_ids.shape[1]
    drafted = drafts is not None and drafts.shape[1] > 0
    launch(
        process.process_rows, (rows, cdiv(limit, BLOCK)), logits, processed,
        unused if scratch is None else scratch.best,
        unused if scratch is None else scratch.finite,
        unused if scratch is None else scratch.plain,
        unused if scratch is None else scratch.histogram,
        unused if scratch is None else scratch.found,
        entries, lanes, positions,
        settings.repetition, settings.presence, settings.frequency,
        settings.bias_ids, settings.bias, settings.banned_ids, settings.banned_before,
        counts.generated, counts.prompt,
        drafts if drafted else None,
        None if masks is None else masks.words,
        None if masks is None else masks.active,
        logits.stride(0), vocabulary, limit, biases, bans,
        1 if drafts is None else drafts.shape[1] + 1,
        BIASES=triton.next_power_of_2(biases) if biases else 0,
        BANS=triton.next_power_of_2(bans) if bans else 0,
        DRAFTS=drafted, MASKS=masks is not None, SUMMARY=scratch is not None,
        BINS=BINS, BLOCK=BLOCK, dependent=True,
    )  # fmt: skip


def draw_processed(
    logits: Tensor,
    addressable: int,
    scratch: Scratch,
    settings: SamplingRows,
    entries: Tensor,
    positions: Tensor,
    purpose: DrawPurpose,
) -> Drawn:
    """Draw from summarised rows; row t by entry ``entries[t]``."""
    s, c, drawn = scratch, settings, empty_drawn(logits)
    rows, blocks = s.best.shape
    values, shape, sizes = common(logits, addressable, s)
    key = (c.seeds, positions, int(purpose))
    find_candidates(logits, addressable, s, c, entries)
    launch(
        draw.pick_rows, (rows,), *values, s.best, s.finite, s.masses, s.kept, s.found, s.candidates,
        s.state, s.sums, drawn.tokens, drawn.broken, entries, c.temperature, c.top_k, c.top_p,
        c.min_p, *key, *shape, blocks,
        SUMS=cut.SUMS.value, SMALL=FEW, CANDIDATES=CANDIDATES, warps=8, **sizes,
    )  # fmt: skip
    narrow(logits, addressable, s, c, entries)
    launch(
        cut.draw_kept, (rows,), *values, s.best, s.state, s.sums, s.kept, s.finite, drawn.tokens,
        entries, c.temperature, c.min_p, *key, *shape, blocks, **sizes,
    )  # fmt: skip
    return drawn


def common(
    logits: Tensor, addressable: int, s: Scratch
) -> tuple[tuple[Tensor, ...], tuple[int, ...], dict[str, Any]]:
    """What every kernel over summarised rows takes: where the values lie, their shape, the sizes of
    blocks."""
    blocks = triton.next_power_of_2(s.best.shape[1])
    sizes = {"BLOCK": BLOCK, "BLOCKS": blocks, "dependent": True}
    shape = (logits.stride(0), logits.shape[1], addressable)
    return (logits, s.processed, s.plain), shape, sizes


def find_candidates(
    logits: Tensor, addressable: int, s: Scratch, c: SamplingRows, entries: Tensor
) -> None:
    """The masses of summarised rows, and the tokens among which most cuts are settled."""
    values, shape, sizes = common(logits, addressable, s)
    grid = s.best.shape
    launch(
        draw.weigh_rows, grid, *values, s.best, s.finite, s.masses, s.kept, s.histogram,
        entries, c.temperature, c.top_k, c.top_p, c.min_p, *shape, BINS=BINS, **sizes,
    )  # fmt: skip
    launch(
        draw.gather_candidates, grid, *values, s.best, s.finite, s.masses, s.histogram,
        s.found, s.candidates, entries, c.temperature, c.top_k, c.top_p, *shape,
        CANDIDATES=CANDIDATES, BINS=BINS, **sizes,
    )  # fmt: skip


def narrow(logits: Tensor, addressable: int, s: Scratch, c: SamplingRows, entries: Tensor) -> None:
    """Settle the cuts that lie beyond the candidates, and weigh what is left of those rows."""
    values, shape, sizes = common(logits, addressable, s)
    rows, blocks = s.best.shape
    team = (rows, min(blocks, cdiv(2 * multiprocessors(), rows)))
    for step in range(cut.STEPS.value):
        launch(
            cut.narrow_rows, team, *values, s.best, s.state, s.sums, entries, c.temperature,
            c.top_p, step, *shape, blocks, **sizes,
        )  # fmt: skip
    launch(
        cut.weigh_kept, team, *values, s.best, s.state, s.sums, s.kept, s.finite, entries,
        c.temperature, c.min_p, *shape, blocks, **sizes,
    )  # fmt: skip


def entries_of(logits: Tensor, sequences: int) -> Tensor:
    """The sequence that each row belongs to, i64[T]."""
    rows = torch.arange(logits.shape[0], device=logits.device)
    return rows // (logits.shape[0] // sequences)


def empty_drawn(logits: Tensor) -> Drawn:
    rows, device = logits.shape[0], logits.device
    return Drawn(
        integers(rows, dtype=torch.int32, device=device),
        torch.empty(rows, dtype=torch.bool, device=device),
    )


def check_logits(logits: Tensor) -> None:
    """Raises OpError for logits that the kernels cannot address."""
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise OpError(
            f"logits must be float32 rows of adjacent elements, not {logits.dtype} with strides "
            f"{tuple(logits.stride())}",
            hint="pass what lm_head returned",
        )
    if logits.shape[1] > VOCABULARY_LIMIT:
        raise OpError(
            f"logits have {logits.shape[1]} columns, more than {VOCABULARY_LIMIT}",
            hint="this backend serves vocabularies up to that size",
        )
