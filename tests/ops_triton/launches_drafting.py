"""Launches of block drafters at the geometry of published ones, and of the demo's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from harness import Operands

from ninfer_core.ops.contracts.values import Candidates, KvCache, PagedRows, TokenCounts
from ninfer_core.ops.contracts.verifying import FoldRows, GivenRows, SettledRows, VerifyAnswer
from ninfer_ops_triton import attention, drafting, kv, verifying

META = Operands(device="meta")
PAGES = 4096
BF16, I32, I64 = torch.bfloat16, torch.int32, torch.int64
ELEMENTS = {"bf16": BF16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


def cache(kind: str, heads: int, size: int) -> KvCache:
    pools = [META.empty(PAGES, 64, heads, size, dtype=ELEMENTS[kind]) for _ in range(2)]
    groups = {"int8": size // 64, "fp8": 1}.get(kind, 0)
    scales = [META.empty(PAGES, 64, heads, groups) for _ in range(2 if groups else 0)]
    return KvCache(kind, *pools, *scales)


def block(
    kind: str, heads: int, kv_heads: int, size: int, width: int, causal: bool, window: int | None
) -> None:
    small = [META.empty(8, dtype=I32) for _ in range(3)]
    rows = PagedRows(META.empty(8, PAGES, dtype=I32), *small, width)
    q = META.empty(8 * width, heads, size, dtype=BF16)
    pools = cache(kind, kv_heads, size)
    attention.block_attention(q, pools, rows, size**-0.5, causal=causal, window=window)


def stored(kind: str, heads: int, kv_heads: int, size: int) -> None:
    """Rotation over whole heads."""
    q, k, v = (META.empty(64, count, size, dtype=BF16) for count in (heads, kv_heads, kv_heads))
    angles = META.empty(64, size // 2), META.empty(64, size // 2)
    scales = META.empty(size), META.empty(size)
    slots = META.empty(64, dtype=I64)
    kv.qk_norm_rope_store(q, k, v, *scales, 1e-6, *angles, cache(kind, kv_heads, size), slots)


def convolved(hidden: int, side: int) -> None:
    x, dynamic = META.empty(64, hidden, dtype=BF16), META.empty(64, hidden // 4, dtype=BF16)
    drafting.block_conv(x, dynamic, META.empty(2, 2, hidden), side, 8)


def selected(sequences: int, steps: int, vocabulary: int, rank: int) -> None:
    logits = META.empty(sequences * steps, vocabulary)
    found = drafting.draft_candidates(logits, 16, vocabulary - 243)
    hidden = META.empty(sequences * steps, rank, dtype=BF16)
    tables = [META.empty(vocabulary, rank, dtype=BF16) for _ in range(2)]
    anchors = META.empty(sequences, dtype=I32)
    drafting.draft_walk(Candidates(found.ids, found.values), hidden, anchors, *tables)


def verified(count: int, width: int, block: bool) -> None:
    """All that stands around a round that verifies drafts."""
    drafts, rows = width - 1, count * width

    def ints(*shape: int, dtype: torch.dtype = I32) -> torch.Tensor:
        return META.empty(*shape, dtype=dtype)

    kept, counts = ints(8, 6 + drafts), TokenCounts(ints(8, 248_320), ints(8, 248_320))
    given = GivenRows(ints(rows), *[ints(count) for _ in range(9)])
    own = verifying.resolve_rows(given, kept, ints(8))
    answer = VerifyAnswer(ints(rows), ints(rows), ints(count))
    places, wide = (1, drafts + 1) if block else (drafts, 1)
    several = [ints(places, count) for _ in range(3)]
    settled = SettledRows(
        ints(count), ints(count, dtype=I64), *several, ints(3, places, count * wide)
    )
    broken = META.empty(rows, dtype=torch.bool)
    for counted in (None, counts):
        verifying.settle_drafts(ints(rows), broken, own, answer, settled, kept, block, counted)
    verifying.keep_drafts(ints(count, drafts), settled, kept, ints(count, drafts), block)
    hidden = META.empty(64, 4096, dtype=BF16)
    folded = FoldRows(*[ints(count) for _ in range(5)])
    verifying.resolve_folds(folded, kept, hidden, hidden)
    verifying.resolve_folds(folded, kept, None, None)


LAUNCHES: dict[str, Callable[[], None]] = {
    "convolved": partial(convolved, 5120, 0),
    "convolved.out": partial(convolved, 2560, 1),
    "selected": partial(selected, 8, 15, 248_320, 256),
    "selected.one": partial(selected, 1, 7, 248_320, 256),
    "verified": partial(verified, 8, 4, False),
    "verified.one": partial(verified, 1, 4, False),
    "verified.block": partial(verified, 8, 16, True),
    "selected.demo": partial(selected, 1, 7, 512, 32),
}
for form in ELEMENTS:
    LAUNCHES[f"block.{form}"] = partial(block, form, 32, 8, 128, 8, False, 2048)
    LAUNCHES[f"stored.{form}"] = partial(stored, form, 32, 8, 128)
LAUNCHES["block.whole"] = partial(block, "bf16", 32, 8, 128, 16, False, None)
LAUNCHES["block.causal"] = partial(block, "bf16", 32, 8, 128, 16, True, 4096)
LAUNCHES["block.wide"] = partial(block, "bf16", 8, 2, 256, 16, False, None)
LAUNCHES["block.demo"] = partial(block, "bf16", 4, 2, 64, 8, True, 64)
