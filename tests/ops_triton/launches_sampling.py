"""Launches of draws and of a round's ends at the vocabulary of the Qwen3.5 models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from harness import Operands

from ninfer_core.ops.contracts.rounds import LaneTables, RoundRing, RoundRows
from ninfer_core.ops.contracts.values import DrawPurpose, SamplingRows, TokenCounts, TokenMasks
from ninfer_ops_triton import draws, rounds, sampling

META = Operands(device="meta")
VOCABULARY, ADDRESSABLE, LANES = 248320, 248077, 8
I32, I64, BOOL = torch.int32, torch.int64, torch.bool


def settings(lanes: int, biases: int, bans: int) -> SamplingRows:
    floats = [META.empty(lanes) for _ in range(6)]
    return SamplingRows(
        temperature=floats[0],
        top_k=META.empty(lanes, dtype=I32),
        top_p=floats[1],
        min_p=floats[2],
        presence=floats[3],
        frequency=floats[4],
        repetition=floats[5],
        seeds=META.empty(lanes, dtype=I64),
        bias_ids=META.empty(lanes, biases, dtype=I32),
        bias=META.empty(lanes, biases),
        banned_ids=META.empty(lanes, bans, dtype=I32),
        banned_before=META.empty(lanes, dtype=I32),
    )


def counts() -> TokenCounts:
    return TokenCounts(
        META.empty(LANES, VOCABULARY, dtype=I32), META.empty(LANES, VOCABULARY, dtype=BOOL)
    )


def masks(rows: int) -> TokenMasks:
    return TokenMasks(META.empty(rows, VOCABULARY // 32, dtype=I32), META.empty(rows, dtype=BOOL))


def argmax(rows: int) -> None:
    draws.argmax_rows(META.empty(rows, VOCABULARY), ADDRESSABLE)


def draw(rows: int, biases: int, bans: int, masked: bool) -> None:
    draws.draw_rows(
        META.empty(rows, VOCABULARY), ADDRESSABLE, settings(LANES, biases, bans), counts(),
        META.empty(rows, dtype=I64), META.empty(rows, dtype=I32), DrawPurpose.DECODE,
        masks(rows) if masked else None,
    )  # fmt: skip


def verify(sequences: int, width: int, drafted: bool) -> None:
    rows = sequences * width
    draws.process_logits(
        META.empty(rows, VOCABULARY), settings(sequences, 16, 4), counts(),
        META.empty(sequences, dtype=I64), META.empty(rows, dtype=I32),
        META.empty(sequences, width - 1, dtype=I32) if drafted else None, None,
    )  # fmt: skip
    draws.sample_tokens(
        META.empty(rows, VOCABULARY), settings(sequences, 16, 4),
        META.empty(rows, dtype=I32), DrawPurpose.PREFILL,
    )  # fmt: skip


def verify_draw(sequences: int, width: int, masked: bool) -> None:
    rows = sequences * width
    draws.draw_rows(
        META.empty(rows, VOCABULARY), ADDRESSABLE, settings(LANES, 16, 4), counts(),
        META.empty(rows, dtype=I64), META.empty(rows, dtype=I32), DrawPurpose.DECODE,
        masks(rows) if masked else None, META.empty(sequences, width - 1, dtype=I32),
    )  # fmt: skip


def law(sequences: int, width: int, vocabulary: int) -> None:
    rows = META.empty(sequences * width, vocabulary)
    sampling.sampling_law(rows, settings(sequences, 16, 4))


def tiny(vocabulary: int) -> None:
    """One block, whose counts Triton takes for constants."""
    logits, where = META.empty(1, vocabulary), META.empty(1, dtype=I32)
    draws.argmax_rows(logits, vocabulary)
    draws.sample_tokens(logits, settings(1, 0, 0), where, DrawPurpose.DECODE)


def numbers(sequences: int, width: int) -> None:
    positions = META.empty(sequences * width, dtype=I32)
    sampling.numbers(META.empty(sequences, dtype=I64), positions, DrawPurpose.ACCEPT)


def a_round(rows: int) -> None:
    words = 4 + 8 * LANES + 3 * 64
    ring = RoundRing(
        META.empty(4, words, dtype=I32), META.empty(4, 4 + 2 * LANES, dtype=I32),
        META.empty(1, dtype=I32), LANES, 64,
    )  # fmt: skip
    tables = LaneTables(META.empty(LANES, dtype=I32), META.empty(LANES, 4096, dtype=I32))
    kinds = (I32, I64, I32, I32, I32, I64, I64)
    columns = [META.empty(rows, dtype=kind) for kind in kinds]
    members = RoundRows(*columns, META.empty(3, rows, dtype=I32), META.empty(rows, dtype=I32))
    rounds.begin_round(ring, tables, members)
    tokens, broken = META.empty(rows, dtype=I32), META.empty(rows, dtype=BOOL)
    rounds.publish_round(ring, tables, members, counts(), tokens, broken)


LAUNCHES: dict[str, Callable[[], None]] = {
    "argmax_1": partial(argmax, 1),
    "argmax_8": partial(argmax, 8),
    "draw_1": partial(draw, 1, 1024, 64, True),
    "draw_8": partial(draw, 8, 1024, 64, False),
    "draw_plain": partial(draw, 3, 0, 0, False),
    "draw_one": partial(draw, 2, 1, 1, False),
    "verify": partial(verify, 8, 8, True),
    "verify_draw": partial(verify_draw, 8, 4, True),
    "verify_draw_one": partial(verify_draw, 1, 16, False),
    "prefill": partial(verify, 1, 1, False),
    "law": partial(law, 8, 8, VOCABULARY),
    "law_of_candidates": partial(law, 8, 7, 16),
    "law_of_one": partial(law, 1, 1, 16),
    "tiny": partial(tiny, 50),
    "numbers_1": partial(numbers, 1, 2),
    "numbers_8": partial(numbers, 8, 8),
    "round_1": partial(a_round, 1),
    "round_8": partial(a_round, 8),
}
