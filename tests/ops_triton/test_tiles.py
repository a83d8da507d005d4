"""How products are cut: the table, the rule, and what may be in either."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files

import pytest

from ninfer_core.ops.errors import OpError
from ninfer_ops_triton import cuts, tiles
from ninfer_ops_triton.cuts import Cut
from ninfer_ops_triton.launch import dry_run
from ninfer_ops_triton.tiles import Tile

TILE = Tile(16, 256, 4, 2, 4, 3, 1)


def test_every_entry_of_the_table_is_a_tile_for_its_shape():
    table = json.loads(files("ninfer_ops_triton").joinpath("tiles.json").read_text("utf-8"))
    for key, entry in table.items():
        found = re.fullmatch(r"(sm_\d+ \w+ (bf16|fp8|q4) \d+x\d+)( 8| 16| 32)?", key)
        assert found, key
        assert key.split()[1] in ("linear", "norm", "swiglu", "head")
        if found[3]:
            tile, cut = Tile(**table[found[1]]), Cut(**entry)
            assert tile.groups % cut.share == 0, key
            assert cut.warps <= cuts.warps_of(tile, cut.share), key
            continue
        tile = Tile(**entry)
        assert found[2] != "q4" or tile.block_k == 64 * tile.groups, key


def test_a_measured_choice_rules_its_shape_alone(monkeypatch):
    key = tiles.table_key("norm", "bf16", 4096, 1024, (9, 0))
    entry = {"block_r": 32, "block_k": 512, "groups": 8, "split": 1, "warps": 8, "stages": 2}
    monkeypatch.setattr(tiles, "_table", lambda: {key: entry})
    tiles.choose.cache_clear()
    with dry_run():
        assert tiles.choose("norm", "bf16", 4096, 1024) == Tile(**entry)
        assert tiles.choose("norm", "fp8", 4096, 1024) == tiles.by_rule("norm", 4096, 1024)
        # Mixers begin beside a large product of a normed stream, products beside none.
        large = {name: tiles.choose(name, "bf16", 16_480, 5120) for name in ("norm", "linear")}
        assert (large["norm"].release, large["linear"].release) == ("start", "sums")
    tiles.choose.cache_clear()


@pytest.mark.parametrize("fusion", ["linear", "norm", "swiglu", "head"])
@pytest.mark.parametrize("rows", [1, 1024, 8224, 248_320])
@pytest.mark.parametrize("columns", [64, 1100, 17_408])
def test_the_rule_fills_the_machine_where_the_shape_allows(fusion, rows, columns):
    with dry_run():
        tile = tiles.by_rule(fusion, rows, columns)
    programs = -(-rows // tile.block_r) * tile.parts(columns)
    assert programs >= 132 or tile.block_r == 16
    assert programs <= 3 * 132 or tile.split == 1
    assert tile.block_k == 64 * tile.groups


@pytest.mark.parametrize(
    ("columns", "parts"), [(256, 1), (512, 2), (513, 3), (1024, 4), (1280, 3), (4096, 4)]
)
def test_no_part_is_empty(columns, parts):
    assert replace(TILE, split=4).parts(columns) == parts


def test_four_bit_products_are_not_begun_early():
    with dry_run():
        assert not tiles.choose("linear", "q4", 4096, 4096).dependent
        assert tiles.choose("linear", "fp8", 4096, 4096).dependent


@pytest.mark.parametrize(
    "change",
    [
        {"block_r": 8},
        {"block_k": 96},
        {"groups": 16},
        {"groups": 1},
        {"split": 0},
        {"split": 17},
        {"ahead": 3},
    ],
)
def test_other_tiles_are_refused(change):
    with pytest.raises(OpError, match="is no tile"):
        replace(TILE, **change)


@pytest.mark.parametrize(
    ("count", "padded"), [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (32, 32), (128, 32)]
)
def test_activation_rows_of_a_program(count, padded):
    assert tiles.padded_rows(count) == padded


@pytest.mark.parametrize("kind", ["bf16", "fp8", "q4"])
@pytest.mark.parametrize("fusion", ["linear", "norm", "swiglu", "head"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (5120, 6144), (17_408, 5120)])
@pytest.mark.parametrize(
    "tile", [Tile(32, 128, 1, 1, 2, 5), Tile(16, 512, 8, 1, 8, 3), Tile(64, 256, 4, 6, 4, 4)]
)
def test_a_cut_keeps_what_makes_bits(fusion, kind, rows, columns, tile):
    with dry_run():
        assert cuts.cut_for(tile, 8, fusion, kind, rows, columns) == Cut(
            tile.block_r, 1, tile.warps, tile.stages
        )
        for n in (16, 32):
            cut = cuts.cut_for(tile, n, fusion, kind, rows, columns)
            groups, rest = divmod(tile.groups, cut.share)
            assert not rest
            assert kind != "q4" or cut.share == 1
            # Four warps of one group would multiply by another instruction, and sums of squares
            # are those of the tile's rows.
            assert cut.warps <= (2 if groups == 1 else tile.warps)
            assert cut.block_r % 16 == 0
            assert fusion != "linear" or cut.block_r >= tile.block_r


@pytest.mark.parametrize(
    ("rows", "columns", "tile"),
    [
        (5120, 6144, Tile(16, 512, 8, 1, 8, 3)),
        (5120, 17_408, Tile(16, 256, 4, 1, 4, 3)),
        (4096, 12_288, Tile(16, 512, 4, 1, 4, 3)),
    ],
)
@pytest.mark.parametrize("n", [16, 32])
def test_few_rows_leave_no_multiprocessor_with_twice_the_work_of_others(rows, columns, tile, n):
    with dry_run():
        cut = cuts.cut_for(tile, n, "linear", "bf16", rows, columns)
    programs = -(-rows // cut.block_r) * cut.share
    assert -(-programs // 132) <= 1.3 * programs / 132
    assert cut.block_r > tile.block_r


def test_a_measured_cut_rules_its_activation_rows_alone(monkeypatch):
    key = tiles.table_key("norm", "bf16", 4096, 1024, (9, 0)) + " 32"
    entry = {"block_r": 16, "share": 2, "warps": 1, "stages": 5, "near": True}
    monkeypatch.setattr(tiles, "_table", lambda: {key: entry})
    with dry_run():
        assert cuts.cut_for(TILE, 32, "norm", "bf16", 4096, 1024) == Cut(**entry)
        for other in (("norm", "fp8", 4096, 1024), ("norm", "bf16", 4096, 2048)):
            assert cuts.cut_for(TILE, 32, *other) == cuts.cut_by_rule(TILE, 32, *other)
        assert cuts.cut_for(TILE, 8, "norm", "bf16", 4096, 1024) == Cut(16, 1, 4, 3)


def test_many_programs_do_not_share_groups():
    tile = Tile(32, 256, 4, 1, 4, 3)
    with dry_run():
        assert cuts.cut_for(tile, 32, "head", "bf16", 248_320, 4096).share == 1
