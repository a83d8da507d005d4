"""Chat options as the variables that a chat template reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer_core.contract.errors import InvalidRequest, Unsupported
from ninfer_core.contract.requests import ChatOptions
from ninfer_qwen3_5.frontend.messages import plain

THINKING = "enable_thinking"
EFFORT = "reasoning_effort"
NO_EFFORT = "none"
_OWN = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


def template_variables(chat: ChatOptions, readable: frozenset[str]) -> dict[str, Any]:
    """The variables, all of which the template reads: nothing is passed in vain.

    ``readable`` are the names that the template reads. The effort ``none`` means no thinking.
    Raises InvalidRequest for a contradiction and Unsupported for an option without effect.
    """
    variables = _given(chat.template_kwargs, readable)
    thinking = _thinking(chat)
    if thinking is not None:
        _need(THINKING, "chat.thinking", readable)
        _set(variables, THINKING, thinking, "chat.thinking")
    if chat.effort is not None and chat.effort != NO_EFFORT:
        _need(EFFORT, "chat.effort", readable)
        _set(variables, EFFORT, chat.effort, "chat.effort")
    return variables


def _given(kwargs: Mapping[str, Any], readable: frozenset[str]) -> dict[str, Any]:
    for name in kwargs:
        field = f"chat.template_kwargs.{name}"
        if name in _OWN:
            raise InvalidRequest(
                f"{field} is set by the engine",
                param=field,
                hint="use the request's own field for it",
            )
        if name not in readable:
            raise Unsupported(
                f"{field} is not read by this model's chat template",
                param=field,
                hint="leave it out",
            )
    return {str(name): plain(value, "chat.template_kwargs") for name, value in kwargs.items()}


def _thinking(chat: ChatOptions) -> bool | None:
    if chat.effort != NO_EFFORT:
        return chat.thinking
    if chat.thinking:
        raise InvalidRequest(
            "chat.thinking is on but chat.effort is 'none'", param="chat.effort", hint="drop one"
        )
    return False


def _need(variable: str, field: str, readable: frozenset[str]) -> None:
    if variable not in readable:
        raise Unsupported(
            f"{field} has no effect: this model's chat template does not read {variable}",
            param=field,
            hint="leave it out",
        )


def _set(variables: dict[str, Any], name: str, value: Any, field: str) -> None:
    if variables.setdefault(name, value) != value:
        raise InvalidRequest(
            f"{field} is {value!r} but chat.template_kwargs.{name} is {variables[name]!r}",
            param=field,
            hint="give one of them",
        )
