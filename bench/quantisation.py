"""What quantised weights do to the demo model's next-token law, against its fp32 checkpoint.

Usage: python bench/quantisation.py [--cases 6] [-o FILE]

Every weight is rounded by a format's encoder and decoder and put back into the transformers model,
so that products stay in fp32 and the weights alone differ; where activations are rounded too, it is
as long chunks of prompts are (E4M3, a scale for each row), at every position. Prompts are held-out
cases of each family; mean and largest KL divergence, and how often the likeliest token is the same,
are over all their positions. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "accept"))

from _setting import CHECKPOINT, conditions

from ninfer_core.artifact import open_artifact
from ninfer_core.artifact.formats import FP8_ROW, Q4_GROUPS, WeightFormat, storage_bytes
from ninfer_core.contract.instance import FrontendRequest
from ninfer_core.contract.requests import ChatOptions, PromptInput
from ninfer_demo_model.source import resolve
from ninfer_demo_model.tasks import FAMILIES, draw
from ninfer_qwen3_5.frontend import open_frontend

GATES = ("in_proj_a.weight", "in_proj_b.weight")


@dataclass(frozen=True)
class Variant:
    """Formats of the matrices and of the tied table, names that stay as they are, and whether what
    matrices multiply is rounded too."""

    matrices: WeightFormat | None = None
    table: WeightFormat | None = None
    kept: tuple[str, ...] = ()
    activations: bool = False


VARIANTS = {
    "fp8": Variant(FP8_ROW, FP8_ROW),
    "fp8, activations too": Variant(FP8_ROW, FP8_ROW, activations=True),
    "q4, head bf16": Variant(Q4_GROUPS),
    "q4": Variant(Q4_GROUPS, FP8_ROW),
    "q4, gates exact": Variant(Q4_GROUPS, FP8_ROW, GATES),
    "q4, head q4": Variant(Q4_GROUPS, Q4_GROUPS),
}


def prompts(cases: int) -> list[list[int]]:
    rng = random.Random(3)
    with open_artifact(resolve()) as artifact:
        frontend = open_frontend(FrontendRequest(artifact=artifact, max_context=4096))
    drawn = [draw(family, rng, "heldout") for family in FAMILIES for _ in range(cases)]
    asked = [
        PromptInput(messages=c.messages, tools=c.tools, chat=ChatOptions(thinking=c.thinking))
        for c in drawn
    ]
    return [frontend.prepare(prompt).token_ids.tolist() for prompt in asked]


def rounded(weight_format: WeightFormat, values: torch.Tensor) -> torch.Tensor:
    """``values`` [R, K] after a trip through the format."""
    shape, layout = tuple(values.shape), weight_format.layouts[0]
    storage = bytearray(storage_bytes(weight_format, shape, layout))
    encoded = weight_format.encode(values, layout)
    for plane, data in zip(weight_format.planes(shape, layout), encoded, strict=True):
        storage[plane.offset : plane.offset + plane.bytes] = data
    return weight_format.decode(memoryview(storage), shape, layout, (0, shape[0]))


def rounded_rows(x: torch.Tensor) -> torch.Tensor:
    """Each row as E4M3 codes and a scale hold it."""
    scale = (x.abs().amax(-1, keepdim=True) / 448).clamp_min(torch.finfo(x.dtype).tiny)
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) * scale


def model(variant: Variant) -> Any:
    from transformers import Qwen3_5ForCausalLM

    made = Qwen3_5ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    for name, parameter in made.named_parameters():
        is_table = "embed_tokens" in name
        form = variant.table if is_table else variant.matrices
        if form is None or parameter.dim() != 2 or name.endswith(variant.kept or ("-",)):
            continue
        parameter.data = rounded(form, parameter.data)
    for name, module in made.named_modules() if variant.activations else ():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(lambda _, given: (rounded_rows(given[0]),))
    return made


def laws(made: Any, asked: list[list[int]]) -> torch.Tensor:
    """log p [positions, V] of all prompts."""
    with torch.inference_mode():
        return torch.cat([made(torch.tensor([ids])).logits[0].log_softmax(-1) for ids in asked])


def compare(base: torch.Tensor, other: torch.Tensor) -> dict[str, float]:
    divergence = (base.exp() * (base - other)).sum(-1)
    same = (base.argmax(-1) == other.argmax(-1)).float().mean()
    return {
        "mean_kl": round(float(divergence.mean()), 5),
        "largest_kl": round(float(divergence.max()), 3),
        "same_likeliest": round(float(same), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=6)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    asked = prompts(args.cases)
    base = laws(model(Variant()), asked)
    found = {name: compare(base, laws(model(kind), asked)) for name, kind in VARIANTS.items()}
    report = {
        "bench": "quantisation", "prompts": len(asked), "positions": len(base),
        "variants": found, "conditions": conditions(),
    }  # fmt: skip
    text = json.dumps(report, indent=2)
    print(text)
    if args.output:
        args.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
