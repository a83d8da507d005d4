"""Log-probabilities as the wire has them: chat, legacy completions, and prompts."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from ninfer_core.contract.sampling import TokenLogprobs

JsonDict = dict[str, Any]
TokenBytes = Callable[[Sequence[int]], list[bytes]]


def chat_logprobs(rows: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> JsonDict:
    """One entry for each generated token, in order, whatever its channel."""
    spelled = _spelled(rows, token_bytes)
    content = []
    for row in rows:
        own, *others = islice(spelled, 1 + len(row.top))
        entry = _entry(own, row.logprob)
        entry["top_logprobs"] = [
            _entry(other, top.logprob) for other, top in zip(others, row.top, strict=True)
        ]
        content.append(entry)
    return {"content": content, "refusal": None}


def prompt_logprobs(
    rows: Iterable[TokenLogprobs | None], token_bytes: TokenBytes
) -> list[JsonDict | None]:
    """One entry for each prompt token, the first of them null: ``{id: {logprob, rank, …}}``.

    It has the likeliest tokens, ``rank`` 1 first, and the token that stands there; where that is
    none of them its rank is not known and null.
    """
    return [None if row is None else _ranked(row, token_bytes) for row in rows]


class LegacyLogprobs:
    """Writes ``logprobs`` of a legacy completion piece by piece.

    ``text_offset`` counts characters of the choice's text up to where a token begins; a token that
    begins within a character has the offset of that character.
    """

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def write(
        self, rows: Sequence[TokenLogprobs | None], token_ids: Sequence[int] = ()
    ) -> JsonDict:
        """``rows``, one per token; a None has the id of ``token_ids`` there and no values."""
        ids = [token_ids[i] if row is None else row.token_id for i, row in enumerate(rows)]
        spellings = self._token_bytes(ids)
        offsets = []
        for spelling in spellings:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(spelling))
        return {
            "tokens": [legacy_token(spelling) for spelling in spellings],
            "token_logprobs": [row and row.logprob for row in rows],
            "top_logprobs": [row and self._top(row) for row in rows],
            "text_offset": offsets,
        }

    def _top(self, row: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens and the chosen one; of two that are spelled alike the likelier."""
        values: dict[str, float] = {}
        own, *others = _spelled([row], self._token_bytes)
        for spelling, top in zip(others, row.top, strict=True):
            values.setdefault(legacy_token(spelling), top.logprob)
        values.setdefault(legacy_token(own), row.logprob)
        return values


def join_legacy(first: JsonDict, second: JsonDict) -> JsonDict:
    """The log-probabilities of a prompt followed by those of its completion."""
    return {name: [*first[name], *second[name]] for name in first}


def legacy_token(spelling: bytes) -> str:
    """The token's text; bytes that are no text by themselves are ``bytes:`` with hex escapes."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)


def _ranked(row: TokenLogprobs, token_bytes: TokenBytes) -> JsonDict:
    own, *others = _spelled([row], token_bytes)
    entries: JsonDict = {}
    for rank, (spelling, top) in enumerate(zip(others, row.top, strict=True), 1):
        entries[str(top.token_id)] = _placed(spelling, top.logprob, rank)
    entries.setdefault(str(row.token_id), _placed(own, row.logprob, None))
    return entries


def _placed(spelling: bytes, logprob: float, rank: int | None) -> JsonDict:
    return {"logprob": logprob, "rank": rank, "decoded_token": spelling.decode(errors="replace")}


def _spelled(rows: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> Iterator[bytes]:
    """The bytes of each row's token and of its alternatives, in order."""
    ids = [i for row in rows for i in (row.token_id, *(top.token_id for top in row.top))]
    return iter(token_bytes(ids))


def _entry(spelling: bytes, logprob: float) -> JsonDict:
    return {
        "token": spelling.decode(errors="replace"),
        "logprob": logprob,
        "bytes": list(spelling),
    }
