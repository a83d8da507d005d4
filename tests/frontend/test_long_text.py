from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from ninfer_qwen3_5.frontend.long_text import encode_limited
from ninfer_qwen3_5.frontend.tokenizer import TextTokenizer

ALPHABET = st.sampled_from(
    [
        *("a", "the", " ", "  ", "\n", "\r\n", "'s", ".", "9", "é", "e\u0301", "\u0301", "日本"),
        *("。", "😀", "<think>", "<|im_end|>", "<", "\t", "Maß", "क्षि", "ᄀ", "ᅡ"),
    ]
)


@pytest.fixture(scope="module")
def tokenizer(raw_tokenizer):
    return TextTokenizer(raw_tokenizer.to_str().encode())


@settings(max_examples=400, deadline=None)
@given(pieces=st.lists(ALPHABET, max_size=60), size=st.sampled_from([3, 8, 17]))
def test_pieces_give_the_tokens_of_the_whole(tokenizer, pieces, size):
    text = "".join(pieces)
    limited = encode_limited(tokenizer, text, 1000, piece_chars=size, largest_piece_chars=4 * size)
    assert limited.complete
    assert limited.encoded == tokenizer.encode_with_offsets(text)


def test_a_pretokenizer_that_never_parts_is_not_parted():
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trained.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(["the fox a fox"] * 9, trainer)
    tokenizer = TextTokenizer(trained.to_str().encode())
    text = "the fox a fox " * 20
    limited = encode_limited(tokenizer, text, 1000, piece_chars=7, largest_piece_chars=1 << 20)
    assert any(b" " in tokenizer.bytes_of(i).strip() for i in limited.encoded.ids)
    assert limited.encoded == tokenizer.encode_with_offsets(text)


def test_a_text_far_over_the_limit_is_not_read_to_its_end(tokenizer, monkeypatch):
    read = []
    encode = tokenizer.encode_with_offsets

    def counted(text):
        read.append(len(text))
        return encode(text)

    monkeypatch.setattr(tokenizer, "encode_with_offsets", counted)
    text = "the quick brown fox " * 10_000
    limited = encode_limited(tokenizer, text, 100, piece_chars=1000)
    assert not limited.complete
    assert len(limited.encoded.ids) > 100
    assert sum(read) <= 2000


def test_a_run_without_boundaries_is_cut_hard_and_read_again_if_it_fits(tokenizer):
    text = "a" * 5000
    whole = tokenizer.encode_with_offsets(text)
    fits = encode_limited(tokenizer, text, 10_000, piece_chars=100, largest_piece_chars=400)
    assert fits == (whole, True)
    over = encode_limited(tokenizer, text, 100, piece_chars=100, largest_piece_chars=400)
    assert not over.complete
    assert 100 < len(over.encoded.ids) < len(whole.ids)


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_the_limit_itself_is_exact(tokenizer, extra):
    text = "the quick brown fox " * 50
    count = len(tokenizer.encode(text))
    limited = encode_limited(tokenizer, text, count + extra, piece_chars=64)
    assert (len(limited.encoded.ids) > count + extra) is (extra < 0)
