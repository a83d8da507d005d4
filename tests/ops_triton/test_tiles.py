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
