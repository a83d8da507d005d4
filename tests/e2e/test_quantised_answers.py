"""The demo checkpoint converted to each quantised format answers on the CPU."""

from __future__ import annotations

import random

import pytest

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_demo_model.tasks import draw
from ninfer_qwen3_5.convert import convert_checkpoint


@pytest.mark.parametrize("recipe", ["fp8", "q4"])
def test_quantised_weights_answer_held_out_cases(accept_scripts, tmp_path, recipe) -> None:
    from _setting import CHECKPOINT
    from accuracy import answer, reply_of

    path = tmp_path / "demo.ninfer"
    convert_checkpoint(CHECKPOINT, path, recipe=recipe)
    options = EngineOptions(devices=("cpu",), max_concurrency=8, max_pending=64, max_context=2048)
    with Engine.open(path, options) as engine:
        for family in ("arithmetic", "reverse"):
            rng = random.Random(f"7/{family}")
            cases = [draw(family, rng, "heldout") for _ in range(8)]
            results = answer(engine, cases)
            assert all(c.check(reply_of(r)) for c, r in zip(cases, results, strict=True))
