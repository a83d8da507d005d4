"""What an engine answers from its text side alone, wherever its model runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from ninfer_core.closing import Closing
from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.frontend import Frontend, PreparedPrompt
from ninfer_core.contract.requests import PromptInput
from ninfer_core.engine.checks import adapted


class TextCalls(Closing):
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

    @abstractmethod
    def _frontend(self) -> Frontend:
        """Raises Unavailable once the engine is closed or has failed."""
