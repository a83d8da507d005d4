"""The bodies of the Responses routes. Here an unknown field is refused, not only warned about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from ninfer_core.contract.errors import InvalidRequest, RequestError, Unsupported
from ninfer_gateway_http.bodies import Items, at_most
from ninfer_gateway_http.nested import Shape, unknown_members

_BODY = ConfigDict(extra="allow", strict=True, frozen=True)
LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED: Final = "reasoning.encrypted_content"
MAX_METADATA: Final = 16
_INPUT: Final[dict[str, Any]] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]
}
_MAX_KEY: Final = 64
_MAX_VALUE: Final = 512


class UnknownParameter(RequestError):
    """The body has a field that the Responses API does not know."""

    code = "unknown_parameter"


class Reasoning(BaseModel):
    """How much is thought; ``summary`` is taken and has no effect but a warning."""

    model_config = _BODY

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextOptions(BaseModel):
    """The form of the answer."""

    model_config = _BODY

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = _BODY

    include_obfuscation: bool | None = None


class PromptFields(BaseModel):
    """What makes the prompt. A field that is null counts as left out.

    ``input`` is text or a list of items; ``tools`` have the flat shape of the Responses API.
    """

    model_config = _BODY

    model: str | None = None
    input: Any = Field(default=None, json_schema_extra=_INPUT)
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Items[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    truncation: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ResponsesRequest(PromptFields):
    """A request for a response.

    Besides OpenAI's fields there are ``top_k``, ``min_p``, the three penalties, ``seed``, ``stop``,
    ``thinking_budget``, ``chat_template_kwargs`` and ``cache_salt``, as in chat completions.
    """

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = None
    store: bool | None = None
    include: Items[str] | None = None

    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None

    metadata: Annotated[dict[str, str], at_most(MAX_METADATA)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None

    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | Items[str] | None = None
    thinking_budget: int | None = None
    cache_salt: str | None = None

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @property
    def stored(self) -> bool:
        return self.store is not False


_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "access_programs": (),
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "moderation": (),
    "personality": (),
    "prompt": (),
    "prompt_cache_options": ({"mode": "implicit"},),
}
"""Fields of the API that this server does not serve, each with the values that ask for nothing."""

_ALLOWED: Final[Mapping[str, tuple[Any, ...]]] = {
    "reasoning.context": ("auto",),
    "reasoning.mode": ("standard",),
    "service_tier": ("auto", "default"),
    "stream_options.include_obfuscation": (False,),
    "text.verbosity": ("medium",),
    "truncation": ("disabled",),
}
"""Fields that are served with these values alone."""

_NEST: Final = ("reasoning", "text", "stream_options")
_SUMMARIES: Final = ("auto", "concise", "detailed")
_INSTEAD: Final = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
}
_KNOWN_INCLUDES: Final = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)


def check_fields(request: PromptFields) -> tuple[str, ...]:
    """Warnings about fields without effect.

    Raises UnknownParameter for a field that the API does not know, Unsupported for one that asks
    for what is not served, InvalidRequest for a value that the API does not allow.
    """
    for name, value in _all(request):
        if value is None:
            continue
        if name in _NEUTRAL:
            _need_one_of(name, value, _NEUTRAL[name])
        elif name in _ALLOWED:
            _need_one_of(name, value, _ALLOWED[name])
    warnings = list(_check_summary(request.reasoning))
    if isinstance(request, ResponsesRequest):
        _check_include(request.include or ())
        _check_labels(request)
        if request.stream_options and not request.stream:
            warnings.append("stream_options has no effect without stream")
        if request.thinking_budget is not None and _off(request):
            warnings.append("thinking_budget has no effect without thinking")
    return tuple(warnings)


def _off(request: PromptFields) -> bool:
    effort = request.reasoning.effort if request.reasoning else None
    return effort == "none" or (request.chat_template_kwargs or {}).get("enable_thinking") is False


def _all(request: PromptFields) -> Iterator[tuple[str, Any]]:
    """Every field that was sent, by its dotted name. Raises UnknownParameter."""
    yield from _extras(request, "")
    yield from ((name, getattr(request, name)) for name in type(request).model_fields)
    for name in _NEST:
        nested = getattr(request, name, None)
        if nested is not None:
            yield from _extras(nested, f"{name}.")
            fields = type(nested).model_fields
            yield from ((f"{name}.{field}", getattr(nested, field)) for field in fields)


def _extras(model: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in (model.model_extra or {}).items():
        field = f"{prefix}{name}"
        if field not in _NEUTRAL and field not in _ALLOWED:
            instead = _INSTEAD.get(field)
            raise UnknownParameter(
                f"unknown parameter: {field!r}",
                param=field,
                hint=f"use {instead}" if instead else "leave it out",
            )
        yield field, value


def refuse_unknown(value: Any, shape: Shape, path: str) -> None:
    """Raises UnknownParameter for the first member, at any depth, that ``shape`` lacks."""
    for place in unknown_members(value, shape, path):
        raise UnknownParameter(f"unknown parameter: {place!r}", param=place, hint="leave it out")


def _need_one_of(field: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        served = f"; served: {', '.join(map(repr, allowed))}" if allowed else ""
        raise Unsupported(
            f"{field} {value!r:.80} is not supported by this server{served}",
            param=field,
            hint="leave it out",
        )


def _check_summary(reasoning: Reasoning | None) -> Iterator[str]:
    for name in ("summary", "generate_summary"):
        value = getattr(reasoning, name, None)
        if value is None:
            continue
        if value not in _SUMMARIES:
            raise InvalidRequest(
                f"reasoning.{name} is {value!r}; it must be one of {', '.join(_SUMMARIES)}",
                param=f"reasoning.{name}",
            )
        yield f"reasoning.{name} has no effect: the whole thought is in the item's content"


def _check_include(include: tuple[str, ...] | list[str]) -> None:
    for index, name in enumerate(include):
        field = f"include[{index}]"
        if name in _KNOWN_INCLUDES:
            raise Unsupported(
                f"{field} is {name!r}, which this server never has", param=field, hint="drop it"
            )
        if name not in (LOGPROBS, ENCRYPTED):
            raise InvalidRequest(
                f"{field} is {name!r}; known: {LOGPROBS}, {ENCRYPTED}", param=field
            )


def _check_labels(request: ResponsesRequest) -> None:
    metadata = request.metadata or {}
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(
            f"metadata has {len(metadata)} pairs; at most {MAX_METADATA}", param="metadata"
        )
    for key, value in metadata.items():
        if len(key) > _MAX_KEY or len(value) > _MAX_VALUE:
            raise InvalidRequest(
                f"metadata: keys have at most {_MAX_KEY} characters, values {_MAX_VALUE}",
                param="metadata",
            )
    if len(request.prompt_cache_key or "") > _MAX_KEY:
        raise InvalidRequest(
            f"prompt_cache_key is longer than {_MAX_KEY} characters", param="prompt_cache_key"
        )
    if request.max_tool_calls is not None and request.max_tool_calls < 1:
        raise InvalidRequest(
            f"max_tool_calls is {request.max_tool_calls}; it must be at least 1",
            param="max_tool_calls",
        )
