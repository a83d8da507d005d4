"""Kernels of rounds as they are captured: nothing small stands between the large ones again."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")

from ninfer_ops_triton.launch import INTERPRET
from ninfer_qwen3_5.geometry.table import SIZES
from ninfer_qwen3_5.program.queued.rounds import Part

BENCH = Path(__file__).parents[2] / "bench"
SIZE = replace(SIZES["0.8b"], layers=4)
"""Three delta nets and one attention."""

NET, FULL = ["mix_kernel"], ["attend_split", "combine_partials"]
HEAD = ["product_kernel.head", "argmax_blocks", "argmax_finish"]


@pytest.fixture
def count(monkeypatch):
    if not INTERPRET:
        pytest.skip("counts launches on CPU tensors, in the interpreter")
    monkeypatch.syspath_prepend(str(BENCH))
    module = __import__("count_kernels")
    yield module.count
    sys.modules.pop("count_kernels")


def layer(*mixer: str) -> list[str]:
    rest = ("add", "swiglu", "add")
    return ["product_kernel.store", *mixer, *(f"product_kernel.{kind}" for kind in rest)]


def test_a_plain_round(count):
    layers = [*layer(*NET) * 3, *layer(*FULL)]
    expected = ["begin", "place_tokens", "embed_stream_kernel", *layers, *HEAD, "publish"]
    assert count(SIZE, 0, 1, Part.GREEDY) == {"round": expected}


@pytest.mark.parametrize("rows", [1, 3])
def test_a_round_that_verifies_drafts(count, rows):
    found = count(SIZE, 3, rows, Part.GREEDY)
    layers = [*layer("mix_verify_kernel") * 3, *layer(*FULL)]
    stored = ["product_kernel.store", "rms_norm_kernel", "product_kernel.store", "norm_rope_store"]
    assert found["verify"] == [
        "resolve", "place_tokens", "embed_stream_kernel", *layers, "hand_over_kernel", *HEAD,
        "settle", "draft_inputs_kernel", *stored,
    ]  # fmt: skip
    step = ["draft_inputs_kernel", "product_kernel.store", "open_stream_kernel", *layer(*FULL)]
    assert found["drafts"] == [
        "aten.index_select", *["place_tokens"] * 3, *[*step, *HEAD] * 3, "aten.stack", "keep",
    ]  # fmt: skip
    assert found["fold"] == ["fold_rows", "fold_layers_kernel"]
