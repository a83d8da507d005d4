"""Variants of a round's launches: what each changes, and that nothing of it stays."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ninfer_ops_triton import launch, tiles
from ninfer_ops_triton.launch import dry_run

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def tune_round(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    yield __import__("tune_round")
    for name in ("tune_round", "profile_round", "_round_variants"):
        sys.modules.pop(name, None)


def state():
    with dry_run():
        large = tiles.choose("swiglu", "q4", 17_408, 5120)
        small = tiles.choose("norm", "bf16", 1024, 1024)
        return large, small, launch.supports_dependent_launch(), launch.SHARED_MEMORY


def test_a_variant_changes_launches_and_leaves_them_as_they_were(tune_round):
    before = state()
    assert not before[0].dependent
    for variant in tune_round.VARIANTS:
        with tune_round.applied(variant):
            during = state()
        assert state() == before
        if variant.name in ("as it is", "no dependent launch", "half of the memory shared"):
            assert during[:2] == before[:2]
    named = {variant.name: variant for variant in tune_round.VARIANTS}
    with tune_round.applied(named["no dependent launch"]):
        assert not launch.supports_dependent_launch()
    with tune_round.applied(named["held from 20 MiB"]):
        large, small, *_ = state()
        assert (large.dependent, large.release, small.release) == (False, "sums", "start")
    with tune_round.applied(named["all begun early"]):
        assert state()[0].dependent
    with tune_round.applied(named["all but normed held"]):
        large, small, *_ = state()
        assert (large.release, small.release) == ("sums", "start")
    with tune_round.applied(named["half of the memory shared"]):
        assert launch.SHARED_MEMORY == 50


def test_a_table_of_a_file_is_in_place_of_the_measured_one(tune_round, tmp_path):
    entry = {"block_r": 64, "block_k": 256, "groups": 4, "split": 3, "warps": 4, "stages": 2}
    path = tmp_path / "made.json"
    key = tiles.table_key("linear", "q4", 5120, 6144, (9, 0))
    path.write_text(json.dumps({key: entry}), encoding="utf-8")
    *_, variant = tune_round.chosen(["as it is"], [path])
    assert variant.name == "tiles of made.json"
    with tune_round.applied(variant), dry_run():
        assert tiles.choose("linear", "q4", 5120, 6144).split == 3


def test_variants_are_chosen_by_a_part_of_their_name(tune_round):
    assert [v.name for v in tune_round.chosen(["held from 20"], [])] == ["held from 20 MiB"]
    assert tune_round.chosen([], []) == tune_round.VARIANTS
