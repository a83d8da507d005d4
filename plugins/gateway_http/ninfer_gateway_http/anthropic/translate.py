"""From the wire to the engine's contract: prompt and options of one message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ninfer_core.contract.engine import LoadSummary
from ninfer_core.contract.errors import InvalidRequest, Unsupported
from ninfer_core.contract.requests import (
    CacheRequest,
    ChatOptions,
    ConsumerMode,
    GenerationOptions,
    PromptInput,
)
from ninfer_core.inputs import parse_prompt
from ninfer_core.inputs.fields import Field
from ninfer_gateway_http.anthropic.content import Conversation
from ninfer_gateway_http.anthropic.reading import Notes
from ninfer_gateway_http.anthropic.schema import CountRequest, MessagesRequest, check_fields
from ninfer_gateway_http.anthropic.thinking import Thinking, effort_of, thinking_of
from ninfer_gateway_http.anthropic.tools import function_choice, function_tools
from ninfer_gateway_http.sampling import sampling_params, stop_strings
from ninfer_gateway_http.texts import refuse_halves

_KEPT_THOUGHTS: Final = "clear_thinking_20251015"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, understood."""

    prompt: PromptInput
    thinking: Thinking
    warnings: tuple[str, ...]


def understand(request: CountRequest, model: LoadSummary, *, strict: bool) -> Asked:
    """Raises InvalidPrompt, InvalidRequest, InvalidSchema or Unsupported, naming the field; whether
    the model can do what is asked is the engine's to say."""
    warnings = check_fields(request, strict=strict)
    notes = Notes(strict=strict)
    _check_label(request.model or "")
    _check_metadata(request, notes)
    thinking = thinking_of(request, model, notes)
    tools = function_tools(request.tools, notes)
    conversation = Conversation(request, notes)
    if conversation.prefilled and thinking.forced:
        raise InvalidRequest(
            "thinking is enabled, but the last message is the beginning of the answer",
            param="thinking",
            hint="end the messages with a user message",
        )
    choice, parallel = function_choice(request.tool_choice, notes)
    effort, wanted = _output_config(request, model, notes)
    _check_context_management(request, notes)
    prompt = parse_prompt(
        {
            "messages": conversation.messages,
            "tools": tools,
            "tool_choice": choice,
            "parallel_tool_calls": parallel,
            "response_format": wanted,
        },
        chat=ChatOptions(
            thinking=thinking.on, effort=effort, continue_final=conversation.prefilled
        ),
        cache=CacheRequest(markers=tuple(notes.markers)),
    )
    return Asked(prompt, thinking, (*warnings, *notes.warnings))


def to_options(request: MessagesRequest, asked: Asked, model: LoadSummary) -> GenerationOptions:
    """The options, on top of the model's own sampling defaults. Raises InvalidRequest."""
    if request.max_tokens < 1:
        raise InvalidRequest(
            f"max_tokens is {request.max_tokens}; it must be at least 1", param="max_tokens"
        )
    return GenerationOptions(
        sampling=sampling_params(
            model, temperature=request.temperature, top_p=request.top_p, top_k=request.top_k
        ),
        max_new_tokens=request.max_tokens,
        stop=_stop(request.stop_sequences or []),
        thinking_budget=asked.thinking.budget,
        consumer=ConsumerMode.STREAMING if request.stream else ConsumerMode.AGGREGATE,
    )


def _stop(sequences: list[str]) -> tuple[str, ...]:
    if "" in sequences:
        place = f"stop_sequences[{sequences.index('')}]"
        raise InvalidRequest(f"{place} is empty", param=place)
    return stop_strings(sequences, "stop_sequences")


def _check_label(model: str) -> None:
    """It comes back in UTF-8."""
    try:
        model.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("model holds half of a surrogate pair", param="model") from None


def _check_metadata(request: CountRequest, notes: Notes) -> None:
    """It only labels a request."""
    if isinstance(request, MessagesRequest) and request.metadata is not None:
        field = Field(request.metadata, "metadata", InvalidRequest)
        notes.check_keys(field, ("user_id",), "metadata")
        if field.value.get("user_id") is not None:
            field.child("user_id").need(str)


def _output_config(
    request: CountRequest, model: LoadSummary, notes: Notes
) -> tuple[str | None, dict[str, Any] | None]:
    """Effort and response format; ``output_format`` is the older place of the latter."""
    wanted = Field(request.output_format, "output_format", InvalidRequest)
    effort = None
    if request.output_config is not None:
        config = Field(request.output_config, "output_config", InvalidRequest)
        notes.check_keys(config, ("effort", "format", "task_budget"), "output_config")
        if config.value.get("task_budget") is not None:
            raise Unsupported(
                "output_config.task_budget is not supported by this server",
                param="output_config.task_budget",
                hint="leave it out",
            )
        effort = effort_of(config.child("effort"), model, notes)
        if config.value.get("format") is not None:
            if wanted.value is not None:
                notes.warn(f"{wanted.path} has no effect beside output_config.format", wanted.path)
            wanted = config.child("format")
    return effort, _response_format(wanted, notes)


def _response_format(field: Field, notes: Notes) -> dict[str, Any] | None:
    if field.value is None:
        return None
    notes.check_keys(field, ("type", "schema"), field.path)
    if field.need(dict).get("type") != "json_schema":
        field.child("type").fail(f"is {field.value.get('type')!r}; it must be 'json_schema'")
    refuse_halves(field.value, field.path)
    return {"type": "json_schema", "json_schema": {"schema": field.child("schema").value}}


def _check_context_management(request: CountRequest, notes: Notes) -> None:
    """Which thoughts of earlier turns stay is the template's to say; nothing else is edited."""
    field = Field(request.context_management or {}, "context_management", InvalidRequest)
    notes.check_keys(field, ("edits",), field.path)
    edits = field.child("edits")
    for edit in edits.children() if edits.value is not None else ():
        if edit.need(dict).get("type") != _KEPT_THOUGHTS:
            raise Unsupported(
                f"{edit.path}.type {edit.value.get('type')!r} is not supported by this server",
                param=f"{edit.path}.type",
                hint="leave it out",
            )
