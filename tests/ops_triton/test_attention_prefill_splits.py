"""Chunks whose tokens are split, against float64 and against chunks that are not split."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from chunk_cases import check, chunk, run
from harness import Operands
from launches_attention import GEOMETRIES
from launches_attention import chunk as launched

from ninfer_ops_triton import attention_prefill, launch
from ninfer_ops_triton.attention_prefill import splits_of
from ninfer_qwen3_5.program.queued.rehearsal import chunk_sizes

ROWS = 5
"""Less than one tile."""


@pytest.fixture
def split(monkeypatch):
    """Sets the splits of a chunk of one tile, each of 64 tokens or more."""

    def set_splits(count: int, least: int = 64) -> None:
        monkeypatch.setattr(attention_prefill, "FEW_ROWS", 0)
        monkeypatch.setattr(attention_prefill, "LEAST_SHARE", least)
        monkeypatch.setattr(attention_prefill, "multiprocessors", lambda: count)

    return set_splits


@pytest.mark.parametrize(
    "length",
    [
        *(64, 65, 67, 129, 192),  # one, two, two, three and three splits of 64
        *(193, 257, 384, 385),  # two, three and three of 128, three of 192
    ],
)  # fmt: skip
def test_lengths_at_the_edges_of_splits(operands, split, length):
    split(3)
    check(*chunk(operands, "bf16", length - ROWS, ROWS, heads=2))


@pytest.mark.parametrize(("kind", "kv", "heads"), [("int8", 2, 4), ("fp8", 1, 6), ("bf16", 2, 10)])
def test_formats_and_heads(operands, split, kind, kv, heads):
    split(2 * kv)
    check(*chunk(operands, kind, 126, ROWS, heads=heads, kv=kv))


@pytest.mark.parametrize("length", [64, 197])
def test_fp32(operands, split, length):
    split(4)
    check(*chunk(operands, "fp32", length - ROWS, ROWS, heads=2, dtype=torch.float32))


def test_blocks_of_older_devices(operands, split, monkeypatch):
    split(3)
    monkeypatch.setattr(attention_prefill, "capability", lambda: (8, 0))
    check(*chunk(operands, "bf16", 125, ROWS, heads=2))


@pytest.mark.parametrize("rows", [16, 17])
def test_where_the_number_of_splits_changes(operands, split, rows):
    """Six splits of one tile, three of two; all are of 64 tokens, and the last rows see two."""
    split(6)
    check(*chunk(operands, "bf16", 90 - rows, rows))


def test_more_multiprocessors_than_splits(operands, split):
    split(10**6)
    check(*chunk(operands, "bf16", 290, ROWS, heads=2))


@pytest.mark.parametrize("length", [5, 256])
def test_one_split_that_is_live_gives_the_bits_of_none(operands, split, length):
    case, queries = chunk(operands, "bf16", length - ROWS, ROWS, heads=2)
    split(1)
    whole = run(case, queries)
    split(8, least=256)
    assert torch.equal(run(case, queries), whole)


def test_the_width_of_the_block_table_changes_no_bits(operands, split):
    split(4)
    case, queries = chunk(operands, "bf16", 200, ROWS, heads=2)
    table = case.rows.block_tables
    wider = torch.cat([table, torch.full_like(table, -1)], dim=1)
    longer = replace(case, rows=replace(case.rows, block_tables=wider))
    assert torch.equal(run(longer, queries), run(case, queries))


@pytest.mark.parametrize("live", [1, 20])
def test_rows_that_are_not_live_are_zero(operands, split, live):
    """Tiles of 16 rows: the second has none or four that are live."""
    split(8)
    case, queries = chunk(operands, "bf16", 112, 24, live=live)
    assert not check(case, queries)[live:].any()


@pytest.mark.parametrize(("kind", "row"), [("bf16", 3), ("bf16", 4), ("fp8", 3)])
def test_a_broken_value_does_not_reach_the_rows_before_it(operands, split, kind, row):
    """It is the last token of the second split, or the first of the third."""
    split(3)
    case, queries = chunk(operands, kind, 124, 8, heads=2)
    healthy = run(case, queries)
    cache = case.pool.cache
    broken = cache.values if cache.value_scales is None else cache.value_scales
    broken.flatten(0, 1)[int(case.slots[row]), 0, 0] = math.nan
    result = run(case, queries)
    assert torch.equal(result[:row], healthy[:row])
    assert result[row:].isnan().any(-1).all()


@pytest.mark.parametrize(
    ("programs", "splits"),
    [
        (1, 32), (4, 32), (5, 26), (16, 8), (17, 7), (32, 4), (44, 3),
        (45, 5), (52, 5), (53, 2), (64, 2), (66, 2), (67, 3), (88, 3), (89, 1), (132, 1), (512, 1),
    ],
)  # fmt: skip
def test_splits_of_132_multiprocessors(monkeypatch, programs, splits):
    monkeypatch.setattr(attention_prefill, "multiprocessors", lambda: 132)
    assert splits_of(programs) == splits


@pytest.mark.parametrize(
    ("count", "grids"),
    [
        (64, [(4, 4, 8), (64 * 16, 1)]), (128, [(4, 8, 4), (128 * 16, 1)]),
        (256, [(4, 16, 2), (256 * 16, 1)]), (512, [(4, 32, 1)]), (2048, [(4, 64, 1)]),
    ],
)  # fmt: skip
def test_programs_of_16_heads(seen, count, grids):
    launched("bf16", 16, 4, count)
    assert [grid for grid, _, _ in seen] == grids


@pytest.mark.parametrize("geometry", GEOMETRIES.values())
def test_partial_results_take_at_most_two_tiles_for_each_multiprocessor(seen, geometry):
    for count in range(17, 600, 7):
        seen.clear()
        launched("bf16", *geometry, count)
        taken = sum(part.numel() * part.element_size() for part in seen[0][1][10:13])
        assert len(seen) == 1 or taken <= 2 * 132 * 64 * (256 + 2) * 4


@pytest.mark.parametrize("geometry", GEOMETRIES.values())
def test_a_rehearsal_of_few_sizes_foresees_all_kernels(seen, geometry):
    for count in chunk_sizes(1024):
        launched("bf16", *geometry, count)
    foreseen = {key for _, _, key in seen}
    for count in range(17, 1024, 5):
        launched("bf16", *geometry, count)
    assert {key for _, _, key in seen} == foreseen


def compiled_apart(kernel, args, options):
    """The kernel, its constants, and what Triton specialises on; the interpreter keeps the
    decorator's arguments, the compiler's kernel has them."""
    free = vars(kernel).get("kwargs", vars(kernel))["do_not_specialize"] or ()
    named = zip(kernel.arg_names, args, strict=False)
    parts = [launch.specialisation(value) for name, value in named if name not in free]
    return kernel.fn.__name__, *parts, *options.items()


@pytest.fixture
def seen():
    """Grid and arguments of launches that do not run, on a device of 132 multiprocessors."""
    found = []

    def observe(kernel, grid, args, options):
        found.append((grid, args, compiled_apart(kernel, args, options)))

    launch.observers.append(observe)
    try:
        with launch.dry_run():
            yield found
    finally:
        launch.observers.remove(observe)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "heads", "kv"),
    [
        ("bf16", 16, 4), ("int8", 16, 4), ("fp8", 16, 4), ("bf16", 8, 2), ("bf16", 24, 4),
        ("bf16", 32, 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("start", "count"), [(255, 64), (6001, 131)])
def test_long_contexts(kind, heads, kv, start, count):
    check(*chunk(Operands(9, "cuda"), kind, start, count, heads=heads, kv=kv))
