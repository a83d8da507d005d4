"""One request's position in its constraint: the stages of the output, and the library's matcher
within a stage that has a grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ninfer_core.contract.frontend import ColumnState
from ninfer_grammar_xgrammar.pace import Pace

if TYPE_CHECKING:
    import numpy.typing as npt

Words = "npt.NDArray[np.uint32]"


@dataclass(frozen=True, slots=True)
class Stage:
    """``grammar`` None: free text. Tokens of ``exits`` lead on once the text is whole, those of
    ``early`` before anything was said; ``end``: the output may end once the text is whole;
    ``next``: the stage that follows by itself then."""

    grammar: Any | None
    exits: Mapping[int, int]
    early: Mapping[int, int]
    end: bool
    next: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Framed:
    """A compiled constraint: shared and immutable. ``free`` u32[words] are the tokens of free text,
    ``ends`` those that end the output, ``open`` makes the library's matcher of a grammar."""

    stages: tuple[Stage, ...]
    start: int
    ends: frozenset[int]
    free: npt.NDArray[np.uint32]
    open: Any
    memory_bytes: int
    prefix: str = ""


class StageMatcher:
    """See the contract's ``Matcher``. ``ended``: the output was ended; nothing may follow."""

    __slots__ = ("_framed", "_inner", "_pace", "_stage", "_untouched", "ended")

    def __init__(self, framed: Framed) -> None:
        self._framed = framed
        self._pace = Pace()
        self._untouched = True
        self.ended = False
        self._enter(framed.start)

    def fork(self) -> StageMatcher:
        twin = object.__new__(StageMatcher)
        twin._framed, twin._stage, twin.ended = self._framed, self._stage, self.ended
        twin._untouched, twin._pace = self._untouched, self._pace
        twin._inner = None if self._inner is None else self._inner.fork()
        return twin

    @property
    def complete(self) -> bool:
        return self.ended or (self._stage.end and self._whole)

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token in enumerate(token_ids):
            if not self._step(token):
                return count
        return len(token_ids)

    def begin(self) -> bool:
        """Move over the text that stands in the prompt already; False if it is not allowed."""
        text = self._framed.prefix
        if self._inner is None or not text:
            return True
        self._untouched = False
        return bool(self._inner.accept_string(text))

    def fill(self, drafts: Sequence[int], out: npt.NDArray[np.uint32]) -> tuple[ColumnState, ...]:
        """Raises TooSlow once the masks have taken too long."""
        self._pace.begin()
        states = self._columns(drafts, out)
        self._pace.end(len(states))
        return states

    def _columns(
        self, drafts: Sequence[int], out: npt.NDArray[np.uint32]
    ) -> tuple[ColumnState, ...]:
        states = [self._column(out[0])]
        ahead = self.fork() if drafts else self
        for index, draft in enumerate(drafts, start=1):
            if states[-1] is ColumnState.READY and ahead._step(draft) and not ahead.ended:
                states.append(ahead._column(out[index]))
            else:
                states += [ColumnState.UNREACHABLE] * (len(drafts) + 1 - len(states))
                break
        return tuple(states)

    @property
    def _whole(self) -> bool:
        return self._inner is None or bool(self._inner.is_completed())

    def _enter(self, number: int) -> None:
        self._stage = self._framed.stages[number]
        grammar = self._stage.grammar
        self._inner = None if grammar is None else self._framed.open(grammar)
        self._untouched = True

    def _step(self, token: int) -> bool:
        if self.ended:
            return False
        stage = self._stage
        if self._untouched and token in stage.early:
            self._enter(stage.early[token])
        elif token in stage.exits and self._whole:
            self._enter(stage.exits[token])
        elif token in self._framed.ends:
            self.ended = stage.end and self._whole
            return self.ended
        elif self._inner is None:
            self._untouched = False
            return bool(int(self._framed.free[token >> 5]) >> (token & 31) & 1)
        else:
            self._untouched = False
            if not self._inner.accept_token(token):
                return False
            self._follow()
        return True

    def _follow(self) -> None:
        if self._stage.next is not None and self._whole:
            self._enter(self._stage.next)

    def _column(self, row: npt.NDArray[np.uint32]) -> ColumnState:
        """The tokens that may come now."""
        if self.ended:
            return ColumnState.UNREACHABLE
        words = self._framed.free.shape[0]
        row[words:] = 0
        if self._inner is None:
            row[:words] = self._framed.free
        else:
            self._inner.fill(row[:words])
            row[:words] &= self._framed.free
        whole, stage = self._whole, self._stage
        for token in self._framed.ends:
            _put(row, token, whole and stage.end)
        for token in stage.exits if whole else ():
            _put(row, token, True)
        for token in stage.early if self._untouched else ():
            _put(row, token, True)
        return ColumnState.READY if row.any() else ColumnState.DEAD_END


def _put(row: npt.NDArray[np.uint32], token: int, allowed: bool) -> None:
    bit = np.uint32(1 << (token & 31))
    row[token >> 5] = row[token >> 5] | bit if allowed else row[token >> 5] & ~bit
