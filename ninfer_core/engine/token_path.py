"""A token sequence as the prefix index and the policies' evidence read it."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.resources import PAGE_TOKENS

_ITEM = 4
"""Bytes of a token id (i32)."""

_DIGEST = 16

Namespace = tuple[str, str | None]
"""Template (with its mode) and salt: what is kept under one is invisible under another."""


class Piece(NamedTuple):
    """At most a block of tokens: their bytes, and the media that start in it, by relative place."""

    tokens: bytes
    media: tuple[tuple[int, bytes], ...] = ()

    def head(self, length: int) -> Piece:
        """The first ``length`` tokens of it."""
        media = tuple(item for item in self.media if item[0] < length) if self.media else ()
        return Piece(self.tokens[: length * _ITEM], media)


class TokenPath:
    """Immutable: a namespace, i32 token ids, and where which media start."""

    __slots__ = ("_media", "_tokens", "namespace")

    def __init__(
        self, namespace: Namespace, tokens: bytes, media: tuple[tuple[int, bytes], ...] = ()
    ) -> None:
        self.namespace = namespace
        self._tokens = tokens
        self._media = media

    @classmethod
    def of(cls, prepared: PreparedPrompt) -> TokenPath:
        identity = prepared.identity
        media = tuple((item.token_start, item.digest) for item in prepared.media)
        return cls((identity.template, identity.salt), prepared.token_ids.tobytes(), media)

    def __len__(self) -> int:
        return len(self._tokens) // _ITEM

    def extended(self, token_ids: Sequence[int]) -> TokenPath:
        """This path with ``token_ids`` behind it."""
        more = array("i", token_ids).tobytes()
        return TokenPath(self.namespace, self._tokens + more, self._media)

    def piece(self, start: int, end: int) -> Piece:
        """The tokens ``start .. end``."""
        media: tuple[tuple[int, bytes], ...] = ()
        if self._media:
            media = tuple((at - start, name) for at, name in self._media if start <= at < end)
        return Piece(self._tokens[start * _ITEM : end * _ITEM], media)

    def block(self, number: int) -> Piece:
        """Block ``number`` of :data:`PAGE_TOKENS` tokens, counted from 0."""
        return self.piece(number * PAGE_TOKENS, (number + 1) * PAGE_TOKENS)

    def digests(self, frontiers: Iterable[int]) -> dict[int, bytes]:
        """For each of ``frontiers``, what names the path up to there; one pass over the tokens."""
        running = hashlib.blake2b(repr(self.namespace).encode(), digest_size=_DIGEST)
        done, named = 0, {}
        for frontier in sorted(set(frontiers)):
            running.update(self._tokens[done * _ITEM : frontier * _ITEM])
            done, here = frontier, running.copy()
            for at, name in self._media:
                if at < frontier:
                    here.update(at.to_bytes(8, "little") + name)
            named[frontier] = here.digest()
        return named
