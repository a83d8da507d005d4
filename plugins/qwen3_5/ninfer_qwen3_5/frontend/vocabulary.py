"""The token ids that carry meaning beyond their text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ninfer_core.contract.grammar import GrammarVocabulary
from ninfer_qwen3_5.frontend.errors import ResourceError
from ninfer_qwen3_5.frontend.resources import Resources
from ninfer_qwen3_5.frontend.tokenizer import TextTokenizer

END_OF_TURN = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Ids of the turn, thought and call marks, and the union of all end-of-sequence ids."""

    turn_start: int
    think_open: int
    think_close: int
    call_open: int
    call_close: int
    eos: frozenset[int]

    def for_grammars(self, tokenizer: TextTokenizer) -> GrammarVocabulary:
        """What a grammar backend has to know; added tokens spell no text."""
        added = frozenset(tokenizer.added.values()) | self.eos
        texts = [b"" if i in added else tokenizer.bytes_of(i) for i in range(tokenizer.vocab_size)]
        return GrammarVocabulary(token_bytes=texts, ends=self.eos)


def read_vocabulary(tokenizer: TextTokenizer, resources: Resources) -> Vocabulary:
    """Look the marks up. Raises ResourceError for a mark that is no token of its own.

    Checkpoints disagree on the end of sequence (a small one may name only ``<|endoftext|>``), so
    every id that any of their files names ends the output.
    """
    return Vocabulary(
        turn_start=_required(tokenizer, TURN_START),
        think_open=_required(tokenizer, THINK_OPEN),
        think_close=_required(tokenizer, THINK_CLOSE),
        call_open=_required(tokenizer, CALL_OPEN),
        call_close=_required(tokenizer, CALL_CLOSE),
        eos=frozenset(_eos(tokenizer, resources)),
    )


def _required(tokenizer: TextTokenizer, spelling: str) -> int:
    token_id = tokenizer.id_of(spelling)
    if token_id is None:
        raise ResourceError(
            f"tokenizer.json has no added token {spelling!r}, which this family's output needs",
            hint="use the tokenizer of a Qwen3.5 checkpoint",
        )
    return token_id


def _eos(tokenizer: TextTokenizer, resources: Resources) -> Iterable[int]:
    named = resources.named_tokens().get("eos_token")
    for spelling in (END_OF_TURN, END_OF_TEXT, named):
        token_id = tokenizer.id_of(spelling) if spelling else None
        if token_id is not None:
            yield token_id
    for token_id in resources.declared_eos_ids():
        if not 0 <= token_id < tokenizer.vocab_size:
            raise ResourceError(
                f"eos_token_id {token_id} lies outside the vocabulary of {tokenizer.vocab_size}",
                hint="take the tokenizer and both configurations from one checkpoint",
            )
        yield token_id
