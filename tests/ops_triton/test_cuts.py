"""How products of many activation rows are cut, and that it makes no bits."""

from __future__ import annotations

from dataclasses import replace

import matrices
import pytest
import torch
from harness import GuardedAllocations

from ninfer_ops_triton import cuts, linear, tiles
from ninfer_ops_triton.cuts import Cut
from ninfer_ops_triton.launch import dry_run
from ninfer_ops_triton.streams import open_stream
from ninfer_ops_triton.tiles import Tile

TILE = Tile(16, 256, 4, 2, 4, 3, 1)


@pytest.mark.parametrize(("kind", "name"), [("bf16", "groups"), ("fp8", "parts")])
def test_programs_that_share_groups_give_the_same_bits(operands, monkeypatch, kind, name):
    rows, columns, count = 24, 300, 9
    tile = replace(matrices.cuts(kind)[name], block_k=256, groups=8)
    monkeypatch.setattr(tiles, "choose", lambda *shape: tile)
    weight, _ = matrices.matrix(operands, kind, rows, columns)
    x, scale = operands.normal(count, columns, dtype=torch.bfloat16), operands.normal(columns)
    residual = operands.normal(count, rows, dtype=torch.bfloat16)
    into = open_stream(residual, operands.normal(rows))

    def results(row, share):
        with monkeypatch.context() as patched:
            patched.setattr(cuts, "cut_for", lambda *_: Cut(row, share, 1, 3, near=share > 1))
            with GuardedAllocations():
                added = linear.linear_add(x, weight, into, into.scale)
                gated = linear.norm_swiglu(open_stream(x, scale), matrices.EPS, weight)
        return added.residual, added.scaled, added.squares, gated

    alone = results(16, 1)
    for row, share in ((32, 2), (16, 8)):
        assert all(map(torch.equal, results(row, share), alone)), (row, share)


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
