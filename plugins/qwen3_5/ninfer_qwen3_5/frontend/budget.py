"""The thinking budget: how an open thought is closed from outside."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_qwen3_5.frontend.tokenizer import TextTokenizer
from ninfer_qwen3_5.frontend.vocabulary import THINK_CLOSE

GUIDANCE = (
    "Considering the limited time by the user, I have to give the solution based on the thinking "
    "directly now."
)
"""The sentence that Qwen3 models know as the end of a thought that was cut short (Qwen3 report)."""


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """``limit`` reasoning tokens, None for no limit, and the tokens that close the thought then.

    At limit 0 the thought is closed without a word, above it with the guidance.
    """

    limit: int | None
    closing: tuple[int, ...]

    def spent(self, reasoning_tokens: int) -> bool:
        return self.limit is not None and reasoning_tokens >= self.limit

    def room(self, reasoning_tokens: int) -> int | None:
        """Reasoning tokens left, None without a limit."""
        return None if self.limit is None else max(0, self.limit - reasoning_tokens)


class BudgetFactory:
    """Makes budgets; tokenises the closing texts once."""

    def __init__(self, tokenizer: TextTokenizer, guidance: str = GUIDANCE) -> None:
        close = f"{THINK_CLOSE}\n\n"
        self._bare = tuple(tokenizer.encode(close))
        self._guided = tuple(tokenizer.encode(f"\n\n{guidance}\n{close}"))

    def budget(self, limit: int | None) -> ThinkingBudget:
        return ThinkingBudget(limit, self._guided if limit else self._bare)
