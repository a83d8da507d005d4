from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_qwen3_5.frontend.detokenizer import decode_rest, decode_step


def stream(pieces):
    pending, texts = b"", []
    for piece in pieces:
        text, pending = decode_step(pending, piece)
        assert len(pending) <= 3
        texts.append(text)
    return [*texts, decode_rest(pending)]


def all_splits(data):
    for mask in range(1 << max(0, len(data) - 1)):
        cuts = [0, *(i + 1 for i in range(len(data) - 1) if mask >> i & 1), len(data)]
        yield [data[a:b] for a, b in pairwise(cuts)]


def test_every_split_of_mixed_characters_gives_the_text():
    text = "aé日😀b"
    for pieces in all_splits(text.encode()):
        texts = stream(pieces)
        assert "".join(texts) == text
        assert texts[-1] == ""


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=9))
def test_every_split_of_any_bytes_equals_decoding_the_whole(data):
    expected = data.decode("utf-8", "replace")
    for pieces in all_splits(data):
        assert "".join(stream(pieces)) == expected


def test_half_a_character_is_held_and_flushed_once():
    data = "😀".encode()
    assert decode_step(b"", data[:3]) == ("", data[:3])
    assert decode_step(data[:3], data[3:]) == ("😀", b"")
    assert decode_rest(data[:3]) == "\ufffd"
    assert decode_rest(b"") == ""
