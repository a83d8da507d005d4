"""From a Responses request to the engine's contract: prompt and options."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
from ninfer_core.inputs import parse_prompt
from ninfer_core.inputs.fields import Field
from ninfer_gateway_http.extras import NeutralValues, check_extras
from ninfer_gateway_http.nested import check_form, choice_shape, members
from ninfer_gateway_http.responses.items import Item
from ninfer_gateway_http.responses.messages import to_messages
from ninfer_gateway_http.responses.schema import PromptFields, ResponsesRequest, refuse_unknown
from ninfer_gateway_http.sampling import (
    alternatives,
    sampling_params,
    stop_strings,
    token_limit,
)

_SAMPLING: Final = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)

_TOOL: Final = members("type name description parameters strict")
_UNSERVED: Final[NeutralValues] = {
    "allowed_callers": (["direct"],),
    "async": (False,),
    "defer_loading": (False,),
    "output_schema": (),
}
_SCHEMA_FORMAT: Final = members("type name description schema strict")
_ASK: Final = '{"type": "json_schema", "name": …, "schema": …}'


def to_prompt(
    request: PromptFields,
    history: Sequence[Item],
    items: Sequence[Item],
    cache: CacheRequest | None = None,
) -> PromptInput:
    """The prompt: instructions, then ``history``, then ``items``.

    Raises InvalidPrompt, InvalidRequest, InvalidSchema or Unsupported with the contract's names of
    the fields; :func:`renamed` gives them the names of the Responses API.
    """
    if isinstance(request.tool_choice, dict) and request.tool_choice.get("type") == "function":
        refuse_unknown(request.tool_choice, choice_shape(request.tool_choice), "tool_choice")
    messages = to_messages(history, items)
    if request.instructions:
        messages.insert(0, {"role": "system", "content": request.instructions})
    if not messages:
        raise InvalidRequest("input says nothing", param="input", hint="give some text")
    return parse_prompt(
        {
            "messages": messages,
            "tools": _tools(request.tools),
            "tool_choice": request.tool_choice,
            "parallel_tool_calls": request.parallel_tool_calls,
            "response_format": _format(request),
        },
        chat=ChatOptions(
            effort=request.reasoning.effort if request.reasoning else None,
            template_kwargs=request.chat_template_kwargs or {},
        ),
        cache=cache,
    )


def to_options(
    request: ResponsesRequest, model: LoadSummary, default_max_tokens: int | None
) -> GenerationOptions:
    """The options, on top of the model's own sampling defaults. Raises InvalidRequest.

    Output always comes in deltas, because only they tell a call that was cut and which tokens are
    the message's own.
    """
    limit = token_limit(request.max_output_tokens, "max_output_tokens")
    return GenerationOptions(
        sampling=sampling_params(
            model,
            top_k=request.top_k,
            **{name: getattr(request, name) for name in _SAMPLING},
        ),
        max_new_tokens=default_max_tokens if limit is None else limit,
        stop=stop_strings(request.stop),
        logprobs=_logprobs(request),
        thinking_budget=request.thinking_budget,
        consumer=ConsumerMode.STREAMING,
    )


def renamed(text: str) -> str:
    """``text`` with the fields of a chat completion as the Responses API calls them."""
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    return text


_SPELLINGS: Final = tuple(
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"\bmessages\[\d+\](\.\w+(\[\d+\])?)*", "input"),
        (r"^messages$", "input"),
        (r"\b(tools\[\d+\])\.function(?=\.)", r"\1"),
        (r"\bresponse_format\.json_schema\b", "text.format"),
        (r"\bresponse_format\b", "text.format"),
        (r"\bmax_(?:completion_|new_)?tokens\b", "max_output_tokens"),
        (r"\b(?:reasoning_effort|chat\.effort)\b", "reasoning.effort"),
        (r"\bchat\.template_kwargs\b", "chat_template_kwargs"),
    )
)


def _tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools in the nested shape; anything that is no function passes as it is and is refused."""
    if tools is None:
        return None
    return [_tool(Field(tool, f"tools[{i}]", InvalidRequest)) for i, tool in enumerate(tools)]


def _tool(field: Field) -> dict[str, Any]:
    given = field.value
    if given.get("type") is None:
        field.child("type").fail("is missing; it must be 'function'")
    if given["type"] != "function":
        return {"type": given["type"]}
    if isinstance(given.get("function"), dict):
        field.child("function").fail(
            "is the shape of chat completions", "name, description and parameters stand in the tool"
        )
    refused = {name: given[name] for name in _UNSERVED if name in given}
    check_extras(refused, refused=_UNSERVED, prefix=f"{field.path}.")
    refuse_unknown({k: v for k, v in given.items() if k not in refused}, _TOOL, field.path)
    known = ("name", "description", "parameters", "strict")
    function = {key: given[key] for key in known if given.get(key) is not None}
    return {"type": "function", "function": function}


def _format(request: PromptFields) -> dict[str, Any] | None:
    wanted = request.text.format if request.text else None
    check_form(wanted, "text.format", member="schema", instead=_ASK)
    by_schema = wanted is not None and wanted.get("type") == "json_schema"
    refuse_unknown(wanted, _SCHEMA_FORMAT if by_schema else members("type"), "text.format")
    if wanted is None or not by_schema:
        return wanted
    fields = {key: value for key, value in wanted.items() if key != "type"}
    return {"type": "json_schema", "json_schema": fields}


def _logprobs(request: ResponsesRequest) -> int | None:
    top = alternatives(request.top_logprobs, "top_logprobs")
    if request.wants_logprobs:
        return top or 0
    if top:
        raise InvalidRequest(
            "top_logprobs needs message.output_text.logprobs in include", param="top_logprobs"
        )
    return None
