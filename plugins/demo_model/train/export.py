"""Write the trained weights as an ordinary Hugging Face checkpoint in bf16.

Run `python -m train.export RUN` in the directory of the demo model: RUN is the folder of the last
training run, with the MTP head beside the target's weights. The tokenizer in `checkpoint/`, with
which the weights were trained, stays as it is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from train.geometry import configuration, generation_defaults
from train.saving import load_weights
from train.train import special_ids

KEPT_FP32 = ("A_log", "linear_attn.norm.weight")
"""Tensors that the released small checkpoints store in fp32."""


def export(run: Path, out: Path) -> None:
    """Write weights, configuration and generation defaults beside the tokenizer in `out`."""
    ids = special_ids(out / "tokenizer.json")
    _write(out / "config.json", configuration(ids))
    _write(out / "generation_config.json", generation_defaults(ids))
    tensors = load_weights(run)
    head: dict[str, Tensor] = torch.load(run / "mtp.pt", map_location="cpu")
    tensors |= {f"mtp.{name}": value for name, value in head.items()}
    save_file(
        {name: _stored(name, tensors[name]) for name in sorted(tensors)},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )


def _stored(name: str, value: Tensor) -> Tensor:
    kept = name.endswith(KEPT_FP32)
    return value.bfloat16().float().contiguous() if kept else value.bfloat16().contiguous()


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path("checkpoint"))
