"""Random weights made on a GPU, in its arena, and a model of them; the kernel that only reads."""

from __future__ import annotations

import pytest
import torch

from ninfer_core import Engine
from ninfer_core.artifact.formats.row_groups import decode_grouped
from ninfer_core.artifact.formats.row_scale import decode_row_scaled
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.geometry.artifact import Geometry
from ninfer_qwen3_5.geometry.source import GeometrySource
from ninfer_qwen3_5.geometry.table import SIZES, config_of

pytestmark = pytest.mark.gpu

ROWS, COLUMNS = 18_000, 2048
"""More elements than are made at once."""

DECODE = {
    "fp32": lambda planes: planes["weight"],
    "bf16": lambda planes: planes["weight"].float(),
    "fp8": lambda planes: decode_row_scaled(planes["codes"], planes["scales"]),
    "q4": lambda planes: decode_grouped(planes["codes"], planes["scales"], COLUMNS),
}


@pytest.mark.parametrize("recipe", DECODE)
def test_matrices_are_made_in_the_arena(device, compute, recipe):
    arena = device.arena("weights", 3 * 4 * ROWS * COLUMNS)
    config = TextConfig.from_json(config_of(SIZES["0.8b"]))
    name = "mlp.down_proj.weight"
    made = []
    for index in range(2):
        source = GeometrySource(config, Geometry(recipe, 7), arena.take, device.torch_device)
        shapes = {name: (ROWS, COLUMNS)}
        prefix = f"text.layers.{index}."
        made.append(source.matrix(prefix, shapes, "ffn_inner").planes)
        assert f"{prefix}{name}.{next(iter(made[-1]))}" in arena.layout()
    for first, second in zip(made[0].values(), made[1].values(), strict=True):
        assert first.device == device.torch_device
        assert torch.equal(first.view(torch.uint8), second.view(torch.uint8))
    values = DECODE[recipe](made[0])
    assert values.isfinite().all()
    assert abs(float(values.mean())) < 4 * COLUMNS**-0.5 * values.numel() ** -0.5
    assert float(values.std()) == pytest.approx(COLUMNS**-0.5, rel=0.03)


@pytest.mark.parametrize("weights", ["bf16", "fp8", "q4"])
def test_a_released_size_answers(tmp_path, monkeypatch, weights):
    monkeypatch.setenv("NINFER_CACHE_DIR", str(tmp_path))
    options = EngineOptions(devices=("cuda:0",), max_concurrency=2)
    asked = GenerationOptions(
        sampling=SamplingParams(temperature=0.0), max_new_tokens=20, logprobs=1, ignore_eos=True
    )
    with Engine.open(f"geometry:0.8b:{weights}", options) as engine:
        made = [
            engine.submit(PromptInput(token_ids=range(start, start + 300)), asked)
            for start in (1000, 50_000)
        ]
        results = [handle.result() for handle in made]
    for result in results:
        assert len(result.token_ids) == 20
        assert all(-20 < row.logprob < 0 for row in result.logprobs)


def test_the_read_bandwidth_names_what_reached_it():
    from ninfer_ops_triton.bench.bandwidth import SHAPES, read_bandwidth

    before = torch.cuda.memory_allocated(0)
    found = read_bandwidth(0, 1 << 28)
    assert found["bytes_per_second"] > 0
    assert found["bytes"] == 1 << 28
    assert found["shape"] in [
        {"programs": s.programs, "block": s.block, "warps": s.warps, "stages": s.stages}
        for s in SHAPES
    ]
    assert torch.cuda.memory_allocated(0) <= before, "what was read stays allocated"
