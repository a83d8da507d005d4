"""The seam for constraint engines: compile once, match per request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ninfer_core.contract.frontend import ColumnState, CompiledGrammar, GrammarSource

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Matcher(Protocol):
    """The committed position of one request inside its grammar."""

    def fill(self, drafts: Sequence[int], out: npt.NDArray[np.uint32]) -> tuple[ColumnState, ...]:
        """As :meth:`MaskProvider.fill`; leaves the matcher where it was."""
        ...

    def fork(self) -> Matcher: ...

    def accept(self, token_ids: Sequence[int]) -> int:
        """Advance over legal tokens; returns how many were legal."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the output may end here."""
        ...


class GrammarCompiler(Protocol):
    """One per tokenizer; thread safe; bounded in time, size and memory."""

    def check(self, source: GrammarSource) -> None:
        """Cheap validation without compiling. Raises InvalidSchema with a JSON pointer."""
        ...

    def compile(self, source: GrammarSource) -> CompiledGrammar: ...

    def open(self, compiled: CompiledGrammar) -> Matcher: ...
