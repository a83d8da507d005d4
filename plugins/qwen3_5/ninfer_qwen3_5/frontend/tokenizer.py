"""Text to ids and ids to exact bytes, from the bytes of a ``tokenizer.json``."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer
from tokenizers.normalizers import NFC

from ninfer_qwen3_5.frontend.byte_alphabet import decode_symbols
from ninfer_qwen3_5.frontend.detokenizer import decode_step
from ninfer_qwen3_5.frontend.errors import ResourceError

LONG_CHARS = 1 << 13
"""The library lets other threads run while it reads a batch, and while it reads one text it does
not. For a longer text than this a batch of one is worth its cost."""
_CONVERT = "convert the checkpoint again with the tokenizer files of a Qwen3.5 model"
_FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")


class Encoded(NamedTuple):
    """Token ids, and per token the half-open range of characters that it stands for.

    Tokens that share one character (pieces of its UTF-8 bytes) carry the same range.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]


class TextTokenizer:
    """A byte-level BPE tokenizer: thread safe, adds no token of its own, never truncates.

    ``declared`` is ``added_tokens_decoder`` of ``tokenizer_config.json``; tokens that only that
    file knows are added under their declared ids. Raises ResourceError for a file that is not a
    byte-level tokenizer or contradicts ``declared``.
    """

    def __init__(self, data: bytes, declared: Mapping[str, Any] | None = None) -> None:
        self._tokenizer = _load(data)
        _declare(self._tokenizer, declared or {})
        self._data = data
        self._plain: Tokenizer | None = None
        self._lock = threading.Lock()
        added = self._tokenizer.get_added_tokens_decoder()
        self.added: dict[str, int] = {token.content: i for i, token in added.items()}
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.divisible = _is_divisible(self._tokenizer, added)
        self._bytes = _byte_table(self._tokenizer, added)
        self._texts: dict[int, str | None] = {}

    @property
    def vocab_size(self) -> int:
        """One more than the largest id that means something."""
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        return _ids(self._tokenizer, text)

    def encode_with_offsets(self, text: str) -> Encoded:
        if len(text) <= LONG_CHARS:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        else:
            (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        return Encoded(list(encoding.ids), list(encoding.offsets))

    def encode_plain(self, text: str) -> list[int]:
        """Ids of ``text`` with the spellings of added tokens read as ordinary text."""
        return _ids(self._without_added(), text)

    def pretoken_ends(self, text: str) -> list[int]:
        """Where the pieces end that byte pairs are merged within, as character positions."""
        return [end for _, (_, end) in self._tokenizer.pre_tokenizer.pre_tokenize_str(text)]

    def id_of(self, spelling: str) -> int | None:
        """The id of an added token."""
        return self.added.get(spelling)

    def bytes_of(self, token_id: int) -> bytes:
        """The exact bytes of a token; empty for an id inside the vocabulary that has no token."""
        return self._bytes[token_id]

    def text_of(self, token_id: int) -> str | None:
        """The text of a token whose bytes are whole characters, None of any other."""
        try:
            return self._texts[token_id]
        except KeyError:
            text, rest = decode_step(b"", self._bytes[token_id])
            whole = self._texts[token_id] = None if rest or "\ufffd" in text else text
            return whole

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of a whole sequence; malformed bytes become U+FFFD."""
        skipped = self.special_ids if skip_special else frozenset()
        kept = (self._bytes[i] for i in token_ids if i not in skipped)
        return b"".join(kept).decode("utf-8", "replace")

    def _without_added(self) -> Tokenizer:
        with self._lock:
            if self._plain is None:
                fields = json.loads(self._data)
                fields["added_tokens"] = []
                self._plain = _load(json.dumps(fields).encode())
            return self._plain


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    if len(text) <= LONG_CHARS:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return list(encoding.ids)


def _load(data: bytes) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(data.decode("utf-8"))
    except Exception as error:  # the library raises bare Exception for every malformed file
        raise ResourceError(f"tokenizer.json cannot be read: {error}", hint=_CONVERT) from error
    if "ByteLevel" not in repr(tokenizer.decoder) or tokenizer.pre_tokenizer is None:
        raise ResourceError(
            "tokenizer.json is not a byte-level tokenizer, which this family uses", hint=_CONVERT
        )
    tokenizer.post_processor = None  # it may trim offsets, and templates write every token
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _declare(tokenizer: Tokenizer, declared: Mapping[str, Any]) -> None:
    """Add the tokens that only ``tokenizer_config.json`` names."""
    known = tokenizer.get_added_tokens_decoder()
    for token_id, token in sorted(_declared_tokens(declared), key=lambda entry: entry[0]):
        if token_id in known:
            continue
        tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != token_id:
            raise ResourceError(
                f"tokenizer_config.json gives {token.content!r} the id {token_id}, tokenizer.json "
                f"gives it {tokenizer.token_to_id(token.content)}",
                hint="take both files from one checkpoint",
            )


def _declared_tokens(declared: Mapping[str, Any]) -> Iterator[tuple[int, AddedToken]]:
    try:
        for token_id, fields in declared.items():
            flags = {name: bool(fields.get(name, False)) for name in _FLAGS}
            yield int(token_id), AddedToken(str(fields["content"]), **flags)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ResourceError(
            f"tokenizer_config.json: added_tokens_decoder is malformed: {error!r}", hint=_CONVERT
        ) from error


def _is_divisible(tokenizer: Tokenizer, added: Mapping[int, AddedToken]) -> bool:
    """Whether a text may be tokenised in pieces that part between a letter and white space."""
    if tokenizer.normalizer is not None and not isinstance(tokenizer.normalizer, NFC):
        return False
    return not any(
        token.lstrip or token.rstrip or any(map(str.isspace, token.content))
        for token in added.values()
    )


def _byte_table(tokenizer: Tokenizer, added: Mapping[int, AddedToken]) -> list[bytes]:
    vocabulary: Iterable[tuple[str, int]] = tokenizer.get_vocab(with_added_tokens=False).items()
    pairs = {index: decode_symbols(symbols) for symbols, index in vocabulary}
    pairs.update({index: token.content.encode() for index, token in added.items()})
    return [pairs.get(index, b"") for index in range(max(pairs, default=-1) + 1)]
