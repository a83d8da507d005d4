"""The body of ``POST /v1/chat/completions``: fields that act, fields that are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from ninfer_core.contract.errors import InvalidRequest
from ninfer_gateway_http.bodies import Items
from ninfer_gateway_http.extras import NeutralValues, check_extras
from ninfer_gateway_http.sampling import LEAST_SEED, SEEDS
from ninfer_gateway_http.structured import FIELD, asks
from ninfer_gateway_http.thinking import Thinking
from ninfer_gateway_http.wire_types import (
    LogitBias,
    Message,
    Reasoning,
    ResponseFormat,
    Stop,
    StructuredOutputs,
    TokenIds,
    Tool,
    ToolChoice,
    at_least,
    between,
)

BODY: Final = ConfigDict(extra="allow", strict=True, frozen=True)


class StreamOptions(BaseModel):
    """``include_usage`` adds one last chunk with the usage, ``continuous_usage_stats`` the usage so
    far to every chunk."""

    model_config = BODY

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(BaseModel):
    """What chat and text completions have in common. A field that is null counts as left out."""

    model_config = BODY

    model: str | None = None
    n: Annotated[int | None, between(1, 128)] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: Annotated[int | None, at_least(0)] = None
    min_tokens: Annotated[int | None, at_least(0)] = None
    stop: Stop = None
    stop_token_ids: TokenIds = None
    ignore_eos: bool | None = None

    temperature: Annotated[float | None, between(0, 100)] = None
    top_p: Annotated[float | None, between(0, 1)] = None
    top_k: Annotated[int | None, between(-1, (1 << 31) - 1)] = None
    min_p: Annotated[float | None, between(0, 1)] = None
    presence_penalty: Annotated[float | None, between(-2, 2)] = None
    frequency_penalty: Annotated[float | None, between(-2, 2)] = None
    repetition_penalty: Annotated[float | None, between(0.01, 10)] = None
    logit_bias: LogitBias = None
    seed: Annotated[int | None, between(LEAST_SEED, SEEDS - 1)] = None
    prompt_logprobs: Annotated[int | None, between(0, 20)] = None

    return_token_ids: bool | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None

    cache_salt: str | None = None
    prompt_cache_key: str | None = None
    session_id: str | None = None


class ChatRequest(GenerationFields):
    """A chat completion request. A field that is null counts as left out.

    ``messages`` and ``tools`` have the OpenAI shape and are checked by the engine's own input
    rules.
    """

    messages: Annotated[Items[Message], Field(json_schema_extra={"minItems": 1})]
    max_completion_tokens: Annotated[int | None, at_least(0)] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, between(0, 20)] = None

    tools: Items[Tool] | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat = None
    structured_outputs: StructuredOutputs = None

    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    thinking_budget: Annotated[int | None, at_least(0)] = None
    thinking_token_budget: Annotated[int | None, at_least(0)] = None
    reasoning_budget: Annotated[int | None, at_least(-1)] = None
    reasoning_effort: str | None = None
    reasoning: Reasoning = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None


COMMON_NEUTRAL: Final[NeutralValues] = {
    "grammar": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "length_penalty": (1, 1.0),
    "prediction": (),
    "priority": (0,),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
_CHAT_NEUTRAL: Final[NeutralValues] = {
    **COMMON_NEUTRAL,
    "add_generation_prompt": (True,),
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": (),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}

_BUDGETS: Final = ("thinking_budget", "thinking_token_budget", "reasoning_budget")
LABELS: Final = frozenset(
    "metadata prompt_cache_options prompt_cache_retention request_id safety_identifier user".split()
)
"""Known fields that only label a request or hint at its cache, and never change its answer."""

_STREAM_NEUTRAL: Final[NeutralValues] = {"include_obfuscation": (False,)}


def check_chat(request: ChatRequest, *, strict: bool) -> tuple[str, ...]:
    """Warnings. Raises as :func:`check_extras`."""
    neutral = dict(_CHAT_NEUTRAL)
    if request.continue_final_message:
        # Some clients must send both; then the two say the same.
        neutral["add_generation_prompt"] = (True, False)
    return check_fields(request, neutral, strict=strict)


def check_effects(request: ChatRequest, thinking: Thinking, *, strict: bool) -> tuple[str, ...]:
    """Warnings about fields that do nothing beside the others. Raises InvalidRequest with
    ``strict``."""
    notes = []
    if thinking.off and thinking.budget is not None:
        name = next(
            (n for n in _BUDGETS if getattr(request, n) is not None), "reasoning.max_tokens"
        )
        notes.append((name, f"{name} has no effect without thinking"))
    wanted = request.structured_outputs
    if wanted is not None and not asks(wanted):
        notes.append((FIELD, f"{FIELD} asks for nothing and has no effect"))
    for param, text in notes:
        if strict:
            raise InvalidRequest(text, param=param, hint="leave it out")
    return tuple(text for _, text in notes)


def check_fields(
    request: GenerationFields, neutral: NeutralValues, *, strict: bool
) -> tuple[str, ...]:
    """Warnings about fields that do nothing. Raises as :func:`check_extras`."""
    warnings = check_extras(request.model_extra, refused=neutral, labels=LABELS, strict=strict)
    if request.stream_options is None:
        return warnings
    nested = check_extras(
        request.stream_options.model_extra,
        refused=_STREAM_NEUTRAL,
        prefix="stream_options.",
        strict=strict,
    )
    unused = () if request.stream else ("stream_options has no effect without stream",)
    return (*warnings, *nested, *unused)
