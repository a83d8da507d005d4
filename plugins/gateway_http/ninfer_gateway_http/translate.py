"""From the wire to the engine's contract: prompt and options of one chat completion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ninfer_core.contract.engine import LoadSummary
from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.requests import (
    CacheRequest,
    ChatOptions,
    ConsumerMode,
    GenerationOptions,
    PromptInput,
)
from ninfer_core.contract.sampling import MAX_LOGPROBS, SamplingParams
from ninfer_core.inputs import PROMPT_FIELDS, parse_prompt
from ninfer_gateway_http.schema import ChatRequest

MAX_STOP_STRINGS: Final = 16
_SAMPLING: Final = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)


def to_prompt(request: ChatRequest) -> PromptInput:
    """The prompt. Raises InvalidPrompt, InvalidRequest, InvalidSchema or Unsupported, naming the
    field; whether the model can do what is asked is the engine's to say."""
    return parse_prompt(
        request.model_dump(include=set(PROMPT_FIELDS)),
        chat=ChatOptions(
            thinking=request.enable_thinking,
            effort=request.reasoning_effort,
            template_kwargs=request.chat_template_kwargs or {},
            continue_final=bool(request.continue_final_message),
        ),
        cache=CacheRequest(salt=request.cache_salt),
    )


def to_options(
    request: ChatRequest, model: LoadSummary, default_max_tokens: int | None
) -> GenerationOptions:
    """The options, on top of the model's own sampling defaults. Raises InvalidRequest."""
    limit = _same(request, "max_completion_tokens", "max_tokens")
    if limit is not None and limit < 0:
        raise InvalidRequest(f"max_tokens is {limit}; it must not be negative", param="max_tokens")
    return GenerationOptions(
        sampling=_sampling(request, model),
        max_new_tokens=default_max_tokens if limit is None else limit,
        min_tokens=request.min_tokens or 0,
        stop=_stop(request.stop),
        stop_token_ids=_token_ids(request.stop_token_ids or [], model, "stop_token_ids"),
        ignore_eos=bool(request.ignore_eos),
        logprobs=_logprobs(request),
        thinking_budget=_same(request, "thinking_budget", "thinking_token_budget"),
        consumer=ConsumerMode.STREAMING if request.stream else ConsumerMode.AGGREGATE,
    )


def _same(request: ChatRequest, name: str, alias: str) -> Any:
    """The value of two spellings of one field."""
    values = [v for v in (getattr(request, name), getattr(request, alias)) if v is not None]
    if len(set(values)) > 1:
        raise InvalidRequest(f"{name} and {alias} differ; give one of them", param=name)
    return values[0] if values else None


def _sampling(request: ChatRequest, model: LoadSummary) -> SamplingParams:
    given = {n: v for n in _SAMPLING if (v := getattr(request, n)) is not None}
    if request.top_k is not None:
        given["top_k"] = 0 if request.top_k == -1 else request.top_k
    if request.logit_bias is not None:
        given["logit_bias"] = _logit_bias(request.logit_bias, model)
    return replace(model.default_sampling, **given)


def _logit_bias(biases: Mapping[str, float], model: LoadSummary) -> dict[int, float]:
    for key in biases:
        if not (key.isascii() and key.isdigit()):
            raise InvalidRequest(
                f"logit_bias has the key {key!r}; keys are token ids", param="logit_bias"
            )
    ids = _token_ids([int(key) for key in biases], model, "logit_bias")
    return dict(zip(ids, biases.values(), strict=True))


def _token_ids(ids: list[int], model: LoadSummary, param: str) -> tuple[int, ...]:
    for token in ids:
        if not 0 <= token < model.vocab_size:
            raise InvalidRequest(
                f"{param} names token {token}; ids run from 0 to {model.vocab_size - 1}",
                param=param,
            )
    return tuple(ids)


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"stop has {len(strings)} strings; at most {MAX_STOP_STRINGS}", param="stop"
        )
    return strings


def _logprobs(request: ChatRequest) -> int | None:
    top = request.top_logprobs
    if not request.logprobs:
        if top:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        return None
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs is {top}; it must lie between 0 and {MAX_LOGPROBS}",
            param="top_logprobs",
        )
    return top or 0
