"""Write trained drafters in bf16, in the layout of released DFlash drafters.

Run `python -m train.export_drafters RUN ...` in the directory of the demo model: each RUN is a
folder of `train.train_dflash`; `checkpoint_dflash` and `checkpoint_dflash2` are written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from train.geometry import drafter_configuration

KINDS = ("dflash", "dflash2")


def export(run: Path, checkpoint: Path) -> None:
    """Write the drafters of one run beside the target's ``checkpoint``."""
    size = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).get_vocab_size()
    for kind in KINDS:
        if (run / f"{kind}.pt").is_file():
            out = checkpoint.with_name(f"checkpoint_{kind}")
            out.mkdir(exist_ok=True)
            config = json.dumps(drafter_configuration(kind, size), indent=2)
            (out / "config.json").write_text(config + "\n", "utf-8")
            stored: dict[str, torch.Tensor] = torch.load(run / f"{kind}.pt", map_location="cpu")
            named = {name: stored[name].bfloat16().contiguous() for name in sorted(stored)}
            save_file(named, out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        export(Path(argument), Path("checkpoint"))
