"""The tokenizer: reversible, digit by digit, with the released models' special tokens."""

from __future__ import annotations

import json
import unicodedata
from random import Random

import pytest

from ninfer_demo_model.tasks import FAMILIES, draw

TEXTS = [
    "What is 17 + 25?",
    "Grüße, 世界! नमस्ते मुझे  \n\n\t x = [1, 2];",
    "emoji 👩‍👩‍👧 and \x00 controls",
    "don't We'LL  trailing   ",
    "",
]
KEPT = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)


def test_conversations_round_trip(encoder, tokenizer):
    rng = Random(8)
    for family in FAMILIES:
        ids, _ = encoder.encode(draw(family, rng, "any"))
        text = tokenizer.decode(ids, skip_special_tokens=False)
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids


def test_digits_stand_alone(tokenizer):
    assert tokenizer.encode("2025", add_special_tokens=False).tokens == list("2025")


def test_nfc_comes_first(tokenizer):
    composed, decomposed = "é", "e\u0301"
    assert tokenizer.encode(composed).ids == tokenizer.encode(decomposed).ids


def test_marks_belong_to_their_word(tokenizer):
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str("नमस्ते मुझे")
    assert len(pieces) == 2


def test_special_tokens(tokenizer, checkpoint):
    stored = _json(checkpoint, "tokenizer.json")
    added = {entry["content"]: entry for entry in stored["added_tokens"]}
    base = len(stored["model"]["vocab"])
    assert [entry["id"] for entry in added.values()] == list(range(base, base + len(added)))
    assert list(added)[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    for name in KEPT:
        assert not added[name]["special"]
    for name in ("<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|video_pad|>"):
        assert added[name]["special"]
    for name in added:
        assert tokenizer.encode(name, add_special_tokens=False).ids == [added[name]["id"]]
    assert 2000 <= base <= 4096


def test_ends(checkpoint, tokenizer):
    settings = _json(checkpoint, "tokenizer_config.json")
    generation = _json(checkpoint, "generation_config.json")
    assert settings["eos_token"] == "<|im_end|>"
    assert settings["pad_token"] == "<|endoftext|>"
    ends = [tokenizer.token_to_id(name) for name in ("<|im_end|>", "<|endoftext|>")]
    assert generation["eos_token_id"] == ends


def test_the_builder_has_these_conventions(training, checkpoint):
    from train.build_tokenizer import BASE_VOCAB, KEPT_IN_TEXT, SPECIAL, SPLIT, settings

    stored = _json(checkpoint, "tokenizer.json")
    assert settings() == _json(checkpoint, "tokenizer_config.json")
    assert stored["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] == SPLIT
    assert len(stored["model"]["vocab"]) == BASE_VOCAB
    assert [entry["content"] for entry in stored["added_tokens"]] == SPECIAL
    kept = {entry["content"] for entry in stored["added_tokens"] if not entry["special"]}
    assert kept == KEPT_IN_TEXT


def _json(checkpoint, name):
    return json.loads((checkpoint / name).read_text("utf-8"))
