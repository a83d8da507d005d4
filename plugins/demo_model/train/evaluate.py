"""Accuracy of the checkpoint on fresh held-out cases, generated greedily by transformers in fp32.

Run `python -m train.evaluate` in the directory of the demo model; the seed comes from the clock
unless it is given, and is printed. Independent of NInfer's own engine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from ninfer_demo_model.tasks import EXTRA, FAMILIES, Case, Split, draw
from train.acceptance import Tally, count_rounds
from train.drafting import Drafting, count_block_rounds
from train.lines import emit
from train.mtp import MtpHead
from train.rendering import END_OF_TURN, Encoder, parse_reply

MAX_NEW = 160
DRAFTS = {"mtp": 3, "dflash": 7, "dflash2": 7}
"""Drafts of a round, by drafter."""

UNSPLIT = "talk"
"""The one family whose few cases are all in training."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: the model, its tokenizer and the drafters asked for, by name."""

    model: Any
    tokenizer: Tokenizer
    drafters: dict[str, MtpHead | Drafting]

    def count(self, drafter: str, ids: list[int], prompt: int, tally: Tally) -> None:
        """Add the rounds of one reply, `ids[prompt:]`."""
        found = self.drafters[drafter]
        if isinstance(found, Drafting):
            count_block_rounds(found, ids, prompt, tally)
        else:
            count_rounds(self.model, found, ids, prompt, tally)

    def generate(self, prompt: list[int]) -> list[int]:
        """Greedy continuation through the end of the turn."""
        row = torch.tensor([prompt])
        end = self.tokenizer.token_to_id(END_OF_TURN)
        out = self.model.generate(
            row,
            attention_mask=torch.ones_like(row),
            max_new_tokens=MAX_NEW,
            do_sample=False,
            temperature=None,
            top_k=None,
            top_p=None,
            eos_token_id=end,
        )
        return [int(token) for token in out[0, len(prompt) :]]

    def is_right(self, case: Case, generated: list[int]) -> bool:
        """Whether the generated turn is the right reply."""
        end = self.tokenizer.token_to_id(END_OF_TURN)
        if generated[-1] != end:
            return False
        text = self.tokenizer.decode(generated[:-1], skip_special_tokens=True)
        return case.check(parse_reply(text, case.tools, case.thinking))


def main() -> None:
    """Measure every family and print one JSON line for each."""
    options = _parser().parse_args()
    seed = time.time_ns() if options.seed is None else options.seed
    emit(seed=seed, date=datetime.now(UTC).date().isoformat())
    subject = load(options.checkpoint, options.drafters)
    for family in options.families:
        emit(**measure(subject, family, seed, options))


def load(checkpoint: Path, drafters: Sequence[str]) -> Subject:
    """The bf16 checkpoint for fp32 arithmetic, with drafters of `DRAFTS`."""
    from transformers import Qwen3_5ForCausalLM

    model: Any = Qwen3_5ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model.eval()
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    found: dict[str, MtpHead | Drafting] = {}
    for name in drafters:
        if name == "mtp":
            found[name] = _mtp_head(model, checkpoint)
        else:
            beside = checkpoint.with_name(f"{checkpoint.name}_{name}")
            found[name] = Drafting.load(model, beside, tokenizer.get_vocab_size())
    return Subject(model, tokenizer, found)


def _mtp_head(model: Any, checkpoint: Path) -> MtpHead:
    stored = load_file(checkpoint / "model.safetensors")
    head = MtpHead(model.config)
    named = {name: value for name, value in stored.items() if name.startswith("mtp.")}
    head.load_state_dict({name.removeprefix("mtp."): v.float() for name, v in named.items()})
    return head


def measure(
    subject: Subject, family: str, seed: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Right answers of `options.cases`, and what the drafts achieve."""
    encoder, rng = Encoder(subject.tokenizer), Random(f"{seed}/{family}")
    split: Split = "any" if family == UNSPLIT else "heldout"
    tallies, right = {name: Tally(DRAFTS[name]) for name in subject.drafters}, 0
    for _ in range(options.cases):
        case = draw(family, rng, split, thinking=options.thinking)
        prompt = encoder.prompt_ids(case)
        generated = subject.generate(prompt)
        correct = subject.is_right(case, generated)
        right += correct
        if options.show and not correct:
            given = subject.tokenizer.decode(generated)
            emit(asked=str(case.messages[-1]["content"])[-300:], answer=case.answer, given=given)
        for name, tally in tallies.items():
            subject.count(name, prompt + generated, len(prompt), tally)
    found: dict[str, Any] = {"family": family, "right": right, "cases": options.cases}
    for name, tally in tallies.items():
        length = round(1 + sum(tally.accepted) / max(1, tally.rounds), 3)
        lines = {"rounds": tally.rounds, "accepted": tally.accepted, "rates": tally.rates()}
        found[name] = lines | {"tokens_per_round": length}
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint"))
    parser.add_argument("--cases", type=int, default=100, help="cases per family")
    parser.add_argument("--seed", type=int, help="default: the clock")
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=FAMILIES + EXTRA)
    parser.add_argument("--drafters", nargs="*", default=[], choices=list(DRAFTS))
    parser.add_argument("--thinking", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--show", action="store_true", help="print wrong answers")
    return parser


if __name__ == "__main__":
    main()
