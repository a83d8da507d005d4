"""Greedy continuations of the demo model against transformers, token by token.

Usage: python bench/accept/greedy_parity.py [--prompts 50] [--tokens 64] [--seed 0]

After the first difference of a prompt its later tokens are not compared. A difference is a tie when
the oracle's two best logits lie closer than 4e-4 there; at most two ties are allowed, and nothing
else. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from typing import Any

import torch
from _setting import CHECKPOINT, open_demo, print_report
from accuracy import prompt_of

from ninfer_core.contract.requests import GenerationOptions
from ninfer_core.contract.sampling import SamplingParams
from ninfer_demo_model.tasks import FAMILIES, draw

TIE = 4e-4
TIES_ALLOWED = 2


def oracle_model() -> Any:
    from transformers import Qwen3_5ForCausalLM

    return Qwen3_5ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()


def compare(oracle: Any, prompt: Sequence[int], ours: Sequence[int]) -> dict[str, Any] | None:
    """The first difference of one continuation, or None."""
    with torch.inference_mode():
        logits = oracle(torch.tensor([[*prompt, *ours]])).logits[0, len(prompt) - 1 : -1]
    wanted = logits.argmax(-1).tolist()
    for step, (mine, theirs) in enumerate(zip(ours, wanted, strict=True)):
        if mine != theirs:
            best = logits[step].topk(2).values
            gap = float(best[0] - best[1])
            return {"step": step, "ours": mine, "oracle": theirs, "gap": gap, "tie": gap < TIE}
    return None


def differences(prompts: int, tokens: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    cases = [draw(FAMILIES[i % len(FAMILIES)], rng, "heldout") for i in range(prompts)]
    oracle = oracle_model()
    options = GenerationOptions(
        sampling=SamplingParams(temperature=0.0), max_new_tokens=tokens, ignore_eos=True
    )
    found = []
    with open_demo() as engine:
        prepared = [engine.prepare(prompt_of(case)) for case in cases]
        handles = [engine.submit(prompt, options) for prompt in prepared]
        for prompt, handle in zip(prepared, handles, strict=True):
            ours = handle.result().token_ids
            assert len(ours) == tokens
            found.append(compare(oracle, prompt.token_ids.tolist(), ours))
    return [entry for entry in found if entry is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = differences(args.prompts, args.tokens, args.seed)
    passed = all(entry["tie"] for entry in found) and len(found) <= TIES_ALLOWED
    print_report({"accept": "greedy_parity", **vars(args), "differences": found}, passed)


if __name__ == "__main__":
    main()
