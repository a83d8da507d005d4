"""Tiny random checkpoints, written by transformers, and ways to change them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ninfer_core.artifact import ArtifactError
from ninfer_qwen3_5.convert import convert_checkpoint

TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "intermediate_size": 96,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
VISION = {
    "depth": 1,
    "hidden_size": 48,
    "num_heads": 4,
    "intermediate_size": 80,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
}
MTP_SHAPES = {
    "mtp.fc.weight": (64, 128),
    "mtp.pre_fc_norm_embedding.weight": (64,),
    "mtp.pre_fc_norm_hidden.weight": (64,),
    "mtp.norm.weight": (64,),
    "mtp.layers.0.input_layernorm.weight": (64,),
    "mtp.layers.0.post_attention_layernorm.weight": (64,),
    "mtp.layers.0.self_attn.q_proj.weight": (256, 64),
    "mtp.layers.0.self_attn.k_proj.weight": (64, 64),
    "mtp.layers.0.self_attn.v_proj.weight": (64, 64),
    "mtp.layers.0.self_attn.o_proj.weight": (64, 128),
    "mtp.layers.0.self_attn.q_norm.weight": (32,),
    "mtp.layers.0.self_attn.k_norm.weight": (32,),
    "mtp.layers.0.mlp.gate_proj.weight": (96, 64),
    "mtp.layers.0.mlp.up_proj.weight": (96, 64),
    "mtp.layers.0.mlp.down_proj.weight": (64, 96),
}


def _save(kind: str, path: Path) -> None:
    from transformers import (
        Qwen3_5Config,
        Qwen3_5ForCausalLM,
        Qwen3_5ForConditionalGeneration,
        Qwen3_5TextConfig,
    )

    torch.manual_seed(3)
    text = Qwen3_5TextConfig(**TINY, tie_word_embeddings=kind == "tied")
    if kind == "vision":
        config = Qwen3_5Config(text_config=text.to_dict(), vision_config=VISION)
        model = Qwen3_5ForConditionalGeneration(config)
    else:
        model = Qwen3_5ForCausalLM(text)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(path, max_shard_size="200KB" if kind == "sharded" else "1GB")


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory of the checkpoint ``kind``: untied, tied, sharded or vision; do not change it."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("checkpoint") / kind
            _save(kind, made[kind])
        return made[kind]

    return get


class Checkpoint:
    """A private copy of a single-file checkpoint whose tensors and config can be changed."""

    def __init__(self, source: Path, path: Path) -> None:
        shutil.copytree(source, path)
        self.path = path
        self.weights = path / "model.safetensors"

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return load_file(self.weights)

    def set_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        save_file({name: value.contiguous() for name, value in tensors.items()}, self.weights)

    def change(self, name: str, value: torch.Tensor | None) -> None:
        """Replace, add or (None) remove one tensor."""
        tensors = self.tensors
        tensors.pop(name, None)
        self.set_tensors(tensors if value is None else {**tensors, name: value})

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((self.path / "config.json").read_text())

    def configure(self, **changes: Any) -> None:
        """Replace top-level keys of config.json; None removes one."""
        config = {**self.config, **changes}
        kept = {key: value for key, value in config.items() if value is not None}
        (self.path / "config.json").write_text(json.dumps(kept))

    def add_mtp(self) -> None:
        generator = torch.Generator().manual_seed(5)
        made = {name: torch.randn(s, generator=generator) for name, s in MTP_SHAPES.items()}
        self.set_tensors({**self.tensors, **made})
        self.configure(mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False)


@pytest.fixture
def checkpoint(saved: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Checkpoint]:
    """A changeable copy of a checkpoint under ``tmp_path / "source"``."""

    def make(kind: str = "untied") -> Checkpoint:
        return Checkpoint(saved(kind), tmp_path / "source")

    return make


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output path in a directory of its own, so that leftovers show."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "model.ninfer"


@pytest.fixture
def refused(out: Path) -> Callable[..., ArtifactError]:
    """Converts, expecting a one-line error with a mend and an empty output directory."""

    def convert(source: Checkpoint, **options: Any) -> ArtifactError:
        with pytest.raises(ArtifactError) as caught:
            convert_checkpoint(source.path, out, **options)
        assert list(out.parent.iterdir()) == []
        assert caught.value.hint
        assert "\n" not in str(caught.value)
        return caught.value

    return convert
