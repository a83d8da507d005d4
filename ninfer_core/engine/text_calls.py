"""What an engine answers from its text side alone, wherever its model runs."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.frontend import Frontend, PreparedPrompt
from ninfer_core.contract.requests import PromptInput
from ninfer_core.engine.checks import adapted


class TextCalls(abc.ABC):
    """The methods of ``contract.engine.EngineLike`` that ask no model, and ``with``."""

    _options: EngineOptions

    def prepare(self, prompt: PromptInput) -> PreparedPrompt:
        return self._frontend().prepare(adapted(prompt, self._options))

    def count_tokens(self, prompt: PromptInput) -> int:
        return self.prepare(prompt).length

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        return self._frontend().tokenize(text, special=special)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return self._frontend().detokenize(token_ids)

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        return self._frontend().token_bytes(token_ids)

    @abc.abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abc.abstractmethod
    def _frontend(self) -> Frontend:
        """Raises Unavailable once the engine is closed or has failed."""
