"""From the wire to the engine's contract: what each choice of a request asks of the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ninfer_core.contract.engine import LoadSummary
from ninfer_core.contract.errors import InvalidRequest
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.requests import (
    CacheMarker,
    CacheRequest,
    ConsumerMode,
    GenerationOptions,
    PromptInput,
)
from ninfer_core.inputs import PROMPT_FIELDS, parse_prompt
from ninfer_gateway_http.cache_hints import cache_request, markers_of, without_marks
from ninfer_gateway_http.choices import Part
from ninfer_gateway_http.nested import check_form
from ninfer_gateway_http.sampling import (
    alternatives,
    of_choice,
    one_of,
    sampling_params,
    stop_strings,
    token_ids,
    token_limit,
)
from ninfer_gateway_http.schema import ChatRequest, GenerationFields
from ninfer_gateway_http.structured import with_structure
from ninfer_gateway_http.texts import check_continued, refuse_halves
from ninfer_gateway_http.thinking import Thinking, thinking_of

MAX_CHOICES: Final = 128
_ASK: Final = '{"type": "json_schema", "json_schema": {"name": …, "schema": …}}'


def chat_thinking(request: ChatRequest) -> Thinking:
    """What is asked of the thought. Raises InvalidRequest."""
    return thinking_of(
        enable_thinking=request.enable_thinking,
        preserve_thinking=request.preserve_thinking,
        reasoning_effort=request.reasoning_effort,
        reasoning=request.reasoning,
        include_reasoning=request.include_reasoning,
        thinking_budget=request.thinking_budget,
        thinking_token_budget=request.thinking_token_budget,
        reasoning_budget=request.reasoning_budget,
        template_kwargs=request.chat_template_kwargs,
    )


def chat_prompt(request: ChatRequest, thinking: Thinking) -> PromptInput:
    """The prompt. Raises InvalidPrompt, InvalidRequest, InvalidSchema or Unsupported, naming the
    field; whether the model can do what is asked is the engine's to say."""
    check_form(request.response_format, "response_format", member="json_schema", instead=_ASK)
    document = {name: getattr(request, name) for name in PROMPT_FIELDS}
    markers = markers_of(request.messages)
    document["messages"] = [without_marks(message) for message in request.messages]
    prompt = parse_prompt(
        document,
        chat=thinking.chat(continue_final=bool(request.continue_final_message)),
        cache=cache_of(request, markers),
    )
    for index, tool in enumerate(request.tools or ()):
        refuse_halves(tool, f"tools[{index}]")
    refuse_halves(request.response_format, "response_format")
    return with_structure(check_continued(prompt), request.structured_outputs)


def cache_of(request: GenerationFields, markers: tuple[CacheMarker, ...] = ()) -> CacheRequest:
    """A session's own id before the cache key, which is advisory."""
    for name in ("session_id", "prompt_cache_key", "cache_salt"):
        refuse_halves(getattr(request, name), name)
    session = request.session_id or request.prompt_cache_key
    return cache_request(session=session, salt=request.cache_salt, markers=markers)


def chat_options(
    request: ChatRequest, thinking: Thinking, model: LoadSummary, default_max_tokens: int | None
) -> GenerationOptions:
    """The options, on top of the model's own sampling defaults. Raises InvalidRequest."""
    limit = one_of(
        "max_completion_tokens",
        max_completion_tokens=request.max_completion_tokens,
        max_tokens=request.max_tokens,
    )
    return replace(
        options_of(request, model),
        max_new_tokens=default_max_tokens if limit is None else token_limit(limit, "max_tokens"),
        logprobs=_logprobs(request),
        thinking_budget=thinking.budget,
    )


def options_of(request: GenerationFields, model: LoadSummary) -> GenerationOptions:
    """The options that all routes spell alike, without limit and log-probabilities."""
    return GenerationOptions(
        sampling=sampling_params(
            model,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            repetition_penalty=request.repetition_penalty,
            seed=request.seed,
            logit_bias=request.logit_bias,
        ),
        min_tokens=request.min_tokens or 0,
        stop=stop_strings(request.stop),
        stop_token_ids=token_ids(request.stop_token_ids or (), model, "stop_token_ids"),
        ignore_eos=bool(request.ignore_eos),
        prompt_logprobs=alternatives(request.prompt_logprobs, "prompt_logprobs"),
        progress=bool(request.stream and request.return_progress),
        consumer=ConsumerMode.STREAMING if request.stream else ConsumerMode.AGGREGATE,
    )


def parts_of(
    prompt: PromptInput | PreparedPrompt, options: GenerationOptions, n: int | None
) -> list[Part]:
    """``n`` choices of one prompt, None for one. Raises InvalidRequest outside of the range."""
    count = 1 if n is None else n
    if not 1 <= count <= MAX_CHOICES:
        raise InvalidRequest(f"n is {n}; it must lie between 1 and {MAX_CHOICES}", param="n")
    return [
        Part(prompt, replace(options, sampling=of_choice(options.sampling, index)))
        for index in range(count)
    ]


def _logprobs(request: ChatRequest) -> int | None:
    top = alternatives(request.top_logprobs, "top_logprobs")
    if request.logprobs:
        return top or 0
    if top:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    return None
