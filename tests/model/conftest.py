"""Random dense checkpoints of the real architecture, made by the independent implementation."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

sys.path.append(str(Path(__file__).parents[2] / "bench" / "accept"))

from _random_weights import randomise

from ninfer_core.artifact import open_artifact
from ninfer_core.contract.instance import Budget
from ninfer_core.device.cpu import open_device
from ninfer_core.ops.contracts.values import Stream
from ninfer_core.ops.reference import OPS
from ninfer_core.testing.program_driver import ProgramDriver
from ninfer_qwen3_5.config import TextConfig
from ninfer_qwen3_5.convert import convert_checkpoint
from ninfer_qwen3_5.load.text import load_text
from ninfer_qwen3_5.model.text import TextModel
from ninfer_qwen3_5.program.assemble import generation_program
from ninfer_qwen3_5.program.program import TextProgram

BASE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}
SHAPES: dict[str, dict[str, object]] = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "wide_values": {"linear_num_value_heads": 6, "linear_value_head_dim": 32},
    "one_kv_head": {"num_key_value_heads": 1, "intermediate_size": 160},
    "large_head": {"head_dim": 64, "hidden_size": 128},
    "all_attention_last": {
        "num_hidden_layers": 6,
        "layer_types": ["linear_attention"] * 4 + ["full_attention"] * 2,
    },
    "equal_heads": {"linear_num_key_heads": 4, "tie_word_embeddings": True},
}


@dataclass(frozen=True)
class Case:
    """One checkpoint with its oracle, and our model over the artifact converted from it."""

    name: str
    path: Path
    oracle: Qwen3_5ForCausalLM
    exact: Qwen3_5ForCausalLM
    model: TextModel
    head_rows: list[int]

    def driver(self, **budget: int) -> ProgramDriver:
        return ProgramDriver(self.program(**budget))

    def program(self, **budget: int) -> TextProgram:
        sizes = {"max_context": 512, "max_concurrency": 8, "prefill_chunk": 64, **budget}
        return generation_program(self.model, Budget(**sizes), open_device(0))[0]


def _config(overrides: dict[str, object]) -> Qwen3_5TextConfig:
    merged = {**BASE, **overrides}
    frequencies = range(int(merged["head_dim"]) // 8)  # type: ignore[call-overload]
    section = [sum(j % 3 == axis for j in frequencies) for axis in range(3)]
    merged["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": section,
        "mrope_interleaved": True,
    }
    return Qwen3_5TextConfig(**copy.deepcopy(merged))


@contextmanager
def float64_delta_rule() -> Iterator[None]:
    """Let transformers' delta rule compute in float64: it casts to float32 whatever it is given,
    and is then up to 1e-3 of a logit away from the exact one on some processors."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    name = "torch_chunk_gated_delta_rule"
    before = getattr(modeling, name)
    _, _, function = inspect.getsource(inspect.unwrap(before)).partition("def ")
    names = dict(vars(modeling))
    exec("def " + function.replace("torch.float32", "torch.float64"), names)
    setattr(modeling, name, names[name])
    try:
        yield
    finally:
        setattr(modeling, name, before)


@pytest.fixture(scope="session")
def exact_logits() -> Callable[[Case, list[int]], torch.Tensor]:
    """transformers' logits [n, V] of a case's model, computed in float64."""

    def logits(case: Case, token_ids: list[int]) -> torch.Tensor:
        with torch.inference_mode(), float64_delta_rule():
            return case.exact(torch.tensor([token_ids])).logits[0]

    return logits


def _tokenizer_files(path: Path, vocab: int) -> None:
    from tokenizers import Tokenizer, models

    names = {f"t{i}": i for i in range(vocab - 16)}
    Tokenizer(models.WordLevel(names, unk_token="t0")).save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text('{"eos_token": "t1"}')


@pytest.fixture(scope="session")
def build_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Builds each named shape once."""
    made: dict[str, Case] = {}

    def build(name: str) -> Case:
        if name not in made:
            made[name] = _build(name, tmp_path_factory.mktemp(name))
        return made[name]

    return build


def _build(name: str, path: Path) -> Case:
    torch.manual_seed(0)
    oracle = Qwen3_5ForCausalLM(_config(SHAPES[name])).float().eval()
    randomise(oracle, seed=len(name), embedding=0.2, head=0.2)
    source = path / "checkpoint"
    oracle.save_pretrained(source)
    _tokenizer_files(source, oracle.config.vocab_size)
    target = path / "model.ninfer"
    convert_checkpoint(source, target, recipe="fp32")
    with open_artifact(target) as artifact:
        config = TextConfig.from_json(artifact.component("text").config)
        rows: list[int] = []
        counted = replace(OPS, norm_head=_counting(OPS.norm_head, rows))
        parameters = load_text(artifact, config, counted)
    model = TextModel(config, parameters, counted, oracle.config.vocab_size)
    return Case(name, target, oracle, copy.deepcopy(oracle).double(), model, rows)


def _counting(
    norm_head: Callable[..., torch.Tensor], rows: list[int]
) -> Callable[..., torch.Tensor]:
    """The head, noting how many rows each call computes and keeping the logits."""

    def counted(stream: Stream, *rest: object) -> torch.Tensor:
        rows.append(stream.residual.shape[0])
        return norm_head(stream, *rest)

    return counted


@pytest.fixture
def driver_of(build_case):
    """Drivers of Programs with checkpoints, closed behind the test."""
    from tests.model.checkpoint_driver import CheckpointDriver, checkpoint_driver

    made: list[CheckpointDriver] = []

    def build(units: str = "eager", **sizes: int) -> CheckpointDriver:
        made.append(checkpoint_driver(build_case("tied").model, units, **sizes))
        return made[-1]

    yield build
    for driver in made:
        driver.program.close()
