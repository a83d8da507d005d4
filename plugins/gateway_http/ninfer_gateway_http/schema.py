"""The body of ``POST /v1/chat/completions``: fields that act, fields that are refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from ninfer_core.contract.errors import Unsupported

_BODY = ConfigDict(extra="allow", strict=True, frozen=True)


class StreamOptions(BaseModel):
    """Options of a stream; ``include_usage`` adds one last chunk with the usage."""

    model_config = _BODY

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """A chat completion request. A field that is null counts as left out.

    ``messages`` and ``tools`` have the OpenAI shape and are checked by the engine's own input
    rules. Besides OpenAI's fields there are ``top_k``, ``min_p``, ``repetition_penalty``,
    ``stop_token_ids``, ``ignore_eos``, ``min_tokens``, ``enable_thinking``, ``thinking_budget``
    (also ``thinking_token_budget``), ``chat_template_kwargs``, ``continue_final_message`` and
    ``cache_salt``.
    """

    model_config = _BODY

    messages: list[dict[str, Any]]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None

    enable_thinking: bool | None = None
    thinking_budget: int | None = None
    thinking_token_budget: int | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None

    cache_salt: str | None = None


_UNSUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": (),
    "functions": ([],),
    "grammar": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "length_penalty": (1, 1.0),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "prediction": (),
    "priority": (0,),
    "prompt_logprobs": (),
    "return_progress": (False,),
    "return_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "store": (False,),
    "structured_outputs": (),
    "timings_per_token": (False,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Known fields that this server does not serve, each with the values that ask for nothing."""

_LABELS: Final = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "user"})
"""Known fields that only label a request and never change its answer."""

_UNSUPPORTED_STREAM: Final[Mapping[str, tuple[Any, ...]]] = {
    "continuous_usage_stats": (False,),
    "include_obfuscation": (False,),
}


def check_extras(request: ChatRequest) -> tuple[str, ...]:
    """Warnings about unknown fields. Raises Unsupported for a known field that asks for more."""
    extras = request.model_extra or {}
    refused = dict(_UNSUPPORTED)
    if request.continue_final_message:
        # Some clients must send both; then the two say the same.
        refused["add_generation_prompt"] = (True, False)
    warnings = list(_unknown(extras, refused, prefix=""))
    if request.stream_options is not None:
        nested = request.stream_options.model_extra or {}
        warnings += _unknown(nested, _UNSUPPORTED_STREAM, prefix="stream_options.")
        if not request.stream:
            warnings.append("stream_options has no effect without stream")
    return tuple(warnings)


def _unknown(
    extras: Mapping[str, Any], refused: Mapping[str, tuple[Any, ...]], prefix: str
) -> Iterator[str]:
    for name, value in extras.items():
        field = f"{prefix}{name}"
        if name in refused:
            if value is not None and value not in refused[name]:
                raise Unsupported(
                    f"{field} is not supported by this server", param=field, hint="leave it out"
                )
        elif name not in _LABELS:
            yield f"unknown field {field!r} was ignored"
