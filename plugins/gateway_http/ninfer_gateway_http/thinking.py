"""The spellings of thinking: on or off, how much of it, and for how many tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.requests import ChatOptions, JsonObject
from ninfer_core.inputs.fields import Field
from ninfer_gateway_http.extras import check_extras
from ninfer_gateway_http.sampling import one_of

_REASONING: Final = {
    "effort": str,
    "max_tokens": int,
    "enabled": bool,
    "exclude": bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """What is asked of the thought. None leaves it to the model's template; ``shown`` False keeps
    it out of the reply."""

    on: bool | None = None
    effort: str | None = None
    budget: int | None = None
    shown: bool = True
    template_kwargs: JsonObject = field(default_factory=dict)

    @property
    def off(self) -> bool:
        """Whether the request says so, in any of its spellings."""
        return (
            self.on is False
            or self.effort == "none"
            or self.template_kwargs.get("enable_thinking") is False
        )

    def chat(self, *, continue_final: bool = False) -> ChatOptions:
        return ChatOptions(
            thinking=self.on,
            effort=self.effort,
            template_kwargs=self.template_kwargs,
            continue_final=continue_final,
        )


def thinking_of(
    *,
    enable_thinking: bool | None = None,
    preserve_thinking: bool | None = None,
    reasoning_effort: str | None = None,
    reasoning: Mapping[str, Any] | None = None,
    include_reasoning: bool | None = None,
    thinking_budget: int | None = None,
    thinking_token_budget: int | None = None,
    reasoning_budget: int | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> Thinking:
    """All spellings at once. Raises InvalidRequest for those that contradict each other.

    ``reasoning`` is an object with ``effort``, ``max_tokens``, ``enabled`` and ``exclude``. A
    reasoning budget of -1 is no budget.
    """
    nested = _nested(reasoning or {})
    kwargs = dict(template_kwargs or {})
    if preserve_thinking is not None:
        kwargs["preserve_thinking"] = one_of(
            "preserve_thinking",
            preserve_thinking=preserve_thinking,
            **{"chat_template_kwargs.preserve_thinking": kwargs.get("preserve_thinking")},
        )
    excluded = nested.get("exclude")
    shown = one_of(
        "include_reasoning",
        include_reasoning=include_reasoning,
        **{"reasoning.exclude": None if excluded is None else not excluded},
    )
    return Thinking(
        on=one_of(
            "enable_thinking",
            enable_thinking=enable_thinking,
            **{"reasoning.enabled": nested.get("enabled")},
        ),
        effort=one_of(
            "reasoning_effort",
            reasoning_effort=reasoning_effort,
            **{"reasoning.effort": nested.get("effort")},
        ),
        budget=one_of(
            "thinking_budget",
            thinking_budget=thinking_budget,
            thinking_token_budget=thinking_token_budget,
            reasoning_budget=None if reasoning_budget == -1 else reasoning_budget,
            **{"reasoning.max_tokens": nested.get("max_tokens")},
        ),
        shown=shown is not False,
        template_kwargs=kwargs,
    )


def _nested(reasoning: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in reasoning.items() if value is not None}
    unknown = {name: value for name, value in given.items() if name not in _REASONING}
    # OpenAI's own requests for a summary of the thought; there is only the thought itself.
    neutral: dict[str, tuple[Any, ...]] = {"summary": (), "generate_summary": ()}
    check_extras(unknown, refused=neutral, prefix="reasoning.", strict=True)
    for name, kind in _REASONING.items():
        if name in given:
            Field(given[name], f"reasoning.{name}", InvalidRequest).need(kind)
    return given
