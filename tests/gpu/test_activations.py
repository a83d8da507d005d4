"""Prompts over rounded activations on a GPU: what a start says, how far answers move, and that
nothing is allocated while it serves."""

from __future__ import annotations

import pytest
import torch

from ninfer_core import Engine
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.requests import GenerationOptions, PromptInput
from ninfer_core.contract.sampling import SamplingParams
from ninfer_core.device.probe import probe_gpu

WAIT = 120.0
PROMPT = list(range(1000, 1700))
LAYERS = 24
"""Of 0.8B; each has four matrices, and one table serves as embedding and head."""


def scored(engine, count) -> torch.Tensor:
    """Log-probabilities of the tokens of a prompt, f64[count - 1]."""
    asked = GenerationOptions(
        sampling=SamplingParams(temperature=0.0), max_new_tokens=2, ignore_eos=True,
        prompt_logprobs=0,
    )  # fmt: skip
    result = engine.submit(PromptInput(token_ids=PROMPT[:count]), asked).result(WAIT)
    return torch.tensor([row.logprob for row in result.prompt_logprobs[1:]], dtype=torch.float64)


@pytest.fixture(scope="module")
def by_activations(tmp_path_factory):
    """By option: what the start says of activations; scores of a long and of a short prompt, both
    twice; and how many allocations the device had made before and after the second time."""
    if not (status := probe_gpu(0)).ok:
        pytest.skip(status.reason)
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("tensor cores of this device do not multiply E4M3")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NINFER_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        for activations in ("auto", "a16"):
            options = EngineOptions(
                devices=("cuda:0",), activations=activations, cache_policy="off"
            )
            with Engine.open("geometry:0.8b:fp8", options) as engine:
                first = scored(engine, 700), scored(engine, 128)
                before = engine.memory_summary().devices[0].allocations
                second = scored(engine, 700), scored(engine, 128)
                after = engine.memory_summary().devices[0].allocations
                said = engine.load_summary().details["activations"]
            found[activations] = said, first, second, (before, after)
    return found


def test_a_start_says_of_how_many_matrices(by_activations) -> None:
    counts = {name: found[0] for name, found in by_activations.items()}
    matrices = 4 * LAYERS + 1
    assert counts == {
        "auto": {"asked": "auto", "matrices": matrices, "a8": 4 * LAYERS},
        "a16": {"asked": "a16", "matrices": matrices, "a8": 0},
    }


def test_only_chunks_of_many_rows_are_rounded(by_activations) -> None:
    (_, rounded, *_), (_, kept, *_) = by_activations["auto"], by_activations["a16"]
    assert torch.equal(rounded[1], kept[1])
    off = rounded[0] - kept[0]
    assert off.abs().max() > 0
    assert off.square().mean().sqrt() < 0.5 * kept[0].std()


def test_equal_prompts_are_equal_and_allocate_nothing(by_activations) -> None:
    for _, first, second, (before, after) in by_activations.values():
        assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
        assert before == after
