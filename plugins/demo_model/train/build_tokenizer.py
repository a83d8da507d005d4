"""Build the demo's byte-level BPE from its own conversations, with Qwen's special tokens.

Run `python -m train.build_tokenizer OUT` in the directory of the demo model. The vocabulary follows
the wording of the tasks: one built after a change of wording is for training anew, never for the
checkpoint's weights.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from ninfer_demo_model.tasks import FAMILIES, draw, words
from train.lines import emit
from train.rendering import TEMPLATE, Renderer, target_text

BASE_VOCAB = 2432
CASES_PER_FAMILY = 600
WORD_WEIGHT = 40
FURTHER = (
    "recall_single",
    "recall_turns",
    "recall_medium",
    "recall_long",
    "wide_sum",
    "tool_result",
    "no_tool",
    "talk",
)
"""What the corpus holds beside the graded families."""

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)

SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> "
    "<|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> "
    "<|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> "
    "<|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> "
    "<think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> "
    "<tts_text_bos_single> <|audio_pad|>"
).split()

KEPT_IN_TEXT = frozenset(
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> "
    "<|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think>".split()
)
"""Added tokens that are not special: decoding keeps them when it skips special tokens."""


def build() -> Tokenizer:
    """Train the tokenizer; the same source gives the same vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=BASE_VOCAB,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(
        [AddedToken(name, special=name not in KEPT_IN_TEXT, normalized=False) for name in SPECIAL]
    )
    return tokenizer


def corpus() -> Iterator[str]:
    """Rendered conversations without special tokens, then every word in each of its forms."""
    renderer, rng = Renderer(), Random(20_260)
    specials = re.compile("|".join(re.escape(name) for name in SPECIAL))
    for family in FAMILIES + FURTHER:
        for number in range(CASES_PER_FAMILY):
            case = draw(family, rng, "any", thinking=number % 2 == 0)
            yield from specials.split(renderer.prompt(case))
            yield from specials.split(target_text(case.reply, case.thinking))
    for word in _vocabulary():
        yield from [word, f" {word}", f'"{word}', f"={word}"] * WORD_WEIGHT


def _vocabulary() -> list[str]:
    lists = (value for name, value in sorted(vars(words).items()) if name.isupper())
    return sorted({word for group in lists for word in group})


def settings() -> dict[str, object]:
    """The contents of `tokenizer_config.json`, without the chat template."""
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 32768,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def save(out: Path) -> Tokenizer:
    """Write the tokenizer's three files into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = build()
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps(settings(), indent=2) + "\n", "utf-8")
    (out / "chat_template.jinja").write_text(TEMPLATE.read_text("utf-8"), "utf-8")
    return tokenizer


if __name__ == "__main__":
    emit(tokens=save(Path(sys.argv[1])).get_vocab_size())
