"""Stages of bench/speculation.py with a drafter that a geometry has."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import pytest

from ninfer_qwen3_5.geometry.artifact import Geometry, write_geometry
from tests.model.test_geometry import TINY
from tests.model.test_geometry_drafters import DRAFTERS


@pytest.fixture(scope="module")
def stages():
    place = Path(__file__).parents[2] / "bench" / "_draft_stages.py"
    spec = importlib.util.spec_from_file_location("_draft_stages_under_test", place)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def asked(model: str, spec: str) -> argparse.Namespace:
    return argparse.Namespace(
        device="cpu", models=[model], spec=spec, drafts=[3], rows=[1], tokens=12, repeats=1,
        draft_sampling=False,
    )  # fmt: skip


def test_the_floor_is_measured_with_the_drafter_that_was_asked_for(stages, tmp_path) -> None:
    path = tmp_path / "tiny.ninfer"
    write_geometry(path, "tiny", TINY, Geometry("bf16", seed=3), 320, DRAFTERS)
    (line,) = stages.floor(asked(str(path), "dflash2"))
    assert (line["spec"], line["rows"], line["tokens"]) == ("dflash2", 1, 12)
    assert line["drafted"] > 0
    assert len(line["plain_ms"]) == len(line["drafting_ms"]) == 1


def test_a_block_s_drafting_is_measured_and_a_long_chain_s_projected(stages) -> None:
    table = {"plain": 10.0, "verify": [10.0] * 7 + [12.0], "draft": [0.0] * 7 + [3.0]}
    block = stages._ratios(table, 7, block=True)
    assert (block["drafting_ms"], block["round_over_plain"]) == (3.0, 1.5)
    assert block["projected_speedup"]["Math500"] == round(5.56 * 10 / 15, 3)
    assert "drawn_plain_ms" not in block
    drawn = stages._ratios(
        table | {"drawn": {"plain": 12.0, "verify": [0.0] * 7 + [18.0]}}, 7, block=True
    )
    assert (drawn["drawn_verify_over_plain"], drawn["drawn_round_over_plain"]) == (1.5, 1.75)
    chain = stages._ratios(table, 7, block=False)
    assert chain["projected_speedup"]["Math500"] == round(5.56 * 10 / 12.7, 3)
