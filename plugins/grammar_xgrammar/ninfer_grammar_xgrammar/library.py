"""The only module that touches xgrammar. Importing it imports torch and transformers too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import xgrammar

from ninfer_core.contract.grammar import GrammarVocabulary
from ninfer_grammar_xgrammar.pace import probe

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_THREADS = 8


class Library:
    """xgrammar for one vocabulary."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        info = xgrammar.TokenizerInfo(
            list(vocabulary.token_bytes),
            xgrammar.VocabType.RAW,
            vocab_size=len(vocabulary.token_bytes),
            stop_token_ids=sorted(vocabulary.ends),
        )
        threads = max(1, min(MAX_THREADS, (os.cpu_count() or 2) // 2))
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=threads, cache_enabled=False)

    def compile(self, ebnf: str) -> Any:
        """Releases the interpreter lock while it works, for as long as that takes."""
        return self._compiler.compile_grammar(xgrammar.Grammar.from_ebnf(ebnf))

    def probe(self, compiled: Any, mask_seconds: float | None = None) -> None:
        """Raises TooSlow; see :func:`ninfer_grammar_xgrammar.pace.probe`."""
        words = -(-len(self._vocabulary.token_bytes) // 32)
        probe(lambda: self.open(compiled), words, sorted(self._vocabulary.ends), mask_seconds)

    def open(self, compiled: Any) -> LibraryMatcher:
        return LibraryMatcher(xgrammar.GrammarMatcher(compiled))


class LibraryMatcher:
    """xgrammar's matcher, filling plain arrays."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fork(self) -> LibraryMatcher:
        return LibraryMatcher(self._matcher.fork())

    def accept_token(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def accept_string(self, text: str) -> bool:
        return bool(self._matcher.accept_string(text))

    def is_completed(self) -> bool:
        return bool(self._matcher.is_completed())

    def fill(self, words: npt.NDArray[np.uint32]) -> None:
        """Into u32[ceil(V/32)]."""
        import torch

        signed = torch.from_numpy(words.view(np.int32)).unsqueeze(0)
        if not self._matcher.fill_next_token_bitmask(signed):
            words.fill(0xFFFFFFFF)
