from __future__ import annotations

import json
import threading
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from ninfer_core.errors import NinferError
from ninfer_qwen3_5.frontend.byte_alphabet import decode_symbols
from ninfer_qwen3_5.frontend.tokenizer import LONG_CHARS, TextTokenizer


@pytest.fixture(scope="module")
def tokenizer(raw_tokenizer):
    return TextTokenizer(raw_tokenizer.to_str().encode())


def test_byte_alphabet_is_that_of_the_byte_level_decoder(raw_tokenizer):
    for byte in range(256):
        symbols = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(byte))
        assert decode_symbols(symbols[0][0]) == chr(byte).encode()
    assert sorted(decode_symbols(s)[0] for s in ByteLevel.alphabet()) == list(range(256))


def test_bytes_of_every_token_join_to_the_text(tokenizer, raw_tokenizer):
    text = "Größe 日本語 😀 <think>\n42</think><|im_end|> e\u0301"
    ids = tokenizer.encode(text)
    joined = b"".join(tokenizer.bytes_of(i) for i in ids)
    assert joined.decode() == unicodedata.normalize("NFC", text)
    assert ids == raw_tokenizer.encode(text).ids


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_decode_equals_the_library_on_random_ids(tokenizer, raw_tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))
    for skip in (False, True):
        assert tokenizer.decode(ids, skip_special=skip) == raw_tokenizer.decode(
            ids, skip_special_tokens=skip
        )


def test_vocabulary_counts_the_added_tokens(tokenizer, raw_tokenizer):
    assert tokenizer.vocab_size == raw_tokenizer.get_vocab_size(with_added_tokens=True)
    assert tokenizer.id_of("<think>") == raw_tokenizer.token_to_id("<think>")
    assert tokenizer.id_of("think") is None
    assert tokenizer.id_of("<|im_end|>") in tokenizer.special_ids
    assert tokenizer.id_of("<think>") not in tokenizer.special_ids


def test_encode_plain_reads_added_tokens_as_text(tokenizer):
    text = "a<|im_end|>b<think>c"
    ids = tokenizer.encode_plain(text)
    assert tokenizer.decode(ids) == text
    assert not {tokenizer.id_of("<|im_end|>"), tokenizer.id_of("<think>")} & set(ids)


def test_post_processing_and_truncation_of_the_file_are_left_out(raw_tokenizer):
    fields = json.loads(raw_tokenizer.to_str())
    fields["truncation"] = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    fields["post_processor"] = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False,
    }  # fmt: skip
    tokenizer = TextTokenizer(json.dumps(fields).encode())
    ids, offsets = tokenizer.encode_with_offsets("the quick  fox")
    assert len(ids) > 2
    assert "".join("the quick  fox"[a:b] for a, b in offsets) == "the quick  fox"


def test_tokens_of_the_config_alone_get_their_declared_ids(raw_tokenizer):
    size = raw_tokenizer.get_vocab_size()
    declared = {
        str(size): {"content": "<|audio_start|>", "special": True},
        str(size + 1): {"content": "<tts_pad>", "special": False},
    }
    tokenizer = TextTokenizer(raw_tokenizer.to_str().encode(), declared)
    assert tokenizer.encode("<|audio_start|><tts_pad>") == [size, size + 1]
    assert tokenizer.special_ids >= {size}
    assert tokenizer.bytes_of(size + 1) == b"<tts_pad>"


def test_a_declared_token_of_the_base_vocabulary_becomes_an_added_one(raw_tokenizer):
    (word,) = raw_tokenizer.encode(" fox").ids
    declared = {str(word): {"content": "\u0120fox", "special": True}}
    tokenizer = TextTokenizer(raw_tokenizer.to_str().encode(), declared)
    assert tokenizer.special_ids >= {word}
    assert tokenizer.vocab_size == raw_tokenizer.get_vocab_size()


@pytest.mark.parametrize("declared", [[1], {"x": {"content": "a"}}, {"900": {}}, {"900": "a"}])
def test_malformed_declarations_are_an_error(raw_tokenizer, declared):
    with pytest.raises(NinferError, match=r"added_tokens_decoder.*convert the checkpoint again"):
        TextTokenizer(raw_tokenizer.to_str().encode(), declared)


@pytest.mark.parametrize("gap", [1, 40])
def test_a_declared_id_that_cannot_be_had_is_an_error(raw_tokenizer, gap):
    size = raw_tokenizer.get_vocab_size()
    declared = {str(size + gap): {"content": "<|audio_start|>", "special": True}}
    with pytest.raises(NinferError, match=r"audio_start.*one checkpoint"):
        TextTokenizer(raw_tokenizer.to_str().encode(), declared)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"model": 1}'])
def test_a_broken_file_is_an_error(data):
    with pytest.raises(NinferError, match=r"tokenizer\.json.*convert the checkpoint again"):
        TextTokenizer(data)


def test_another_kind_of_tokenizer_is_an_error(raw_tokenizer):
    fields = json.loads(raw_tokenizer.to_str())
    fields["decoder"] = None
    with pytest.raises(NinferError, match=r"byte-level.*convert the checkpoint again"):
        TextTokenizer(json.dumps(fields).encode())


def test_the_text_of_a_token_is_that_of_its_whole_characters(frontend) -> None:
    tokenizer = frontend._parts.tokenizer
    for token, data in enumerate(frontend.token_bytes(range(frontend.vocab_size))):
        try:
            expected = data.decode()
        except UnicodeDecodeError:
            expected = None
        assert tokenizer.text_of(token) == expected == tokenizer.text_of(token)


@pytest.mark.parametrize("text", ["x" * 20_000, "the fox <think> é\u0301 日本 " * 2000])
def test_a_long_text_has_the_tokens_that_the_library_gives_it(tokenizer, raw_tokenizer, text):
    assert len(text) > LONG_CHARS
    expected = raw_tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text) == expected.ids
    assert tokenizer.encode_with_offsets(text) == (expected.ids, expected.offsets)
    assert b"".join(map(tokenizer.bytes_of, tokenizer.encode_plain(text))).decode() == (
        unicodedata.normalize("NFC", text)
    )


@pytest.mark.parametrize("method", ["encode", "encode_with_offsets", "encode_plain"])
def test_other_threads_run_while_a_long_word_is_read(tokenizer, method):
    tokenizer.encode_plain("a")
    reading = threading.Thread(target=getattr(tokenizer, method), args=("x" * 400_000,))
    turns = 0
    reading.start()
    while reading.is_alive():
        turns += 1
        time.sleep(0.0002)
    assert turns > 10
