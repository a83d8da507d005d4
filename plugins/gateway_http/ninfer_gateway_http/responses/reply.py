"""The response object: the request's settings, what came of it, and its counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from ninfer_core.contract.events import FinishReason, GenerationResult, Usage
from ninfer_core.contract.requests import GenerationOptions
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_gateway_http.errors import ErrorReply, on_the_wire
from ninfer_gateway_http.logprobs import TokenBytes, chat_logprobs
from ninfer_gateway_http.responses.items import Item, new_id
from ninfer_gateway_http.responses.schema import ResponsesRequest
from ninfer_gateway_http.responses.translate import renamed
from ninfer_gateway_http.usage import timings_of

JsonDict = dict[str, Any]
_LIMITS: Final = frozenset({FinishReason.OUTPUT_LIMIT, FinishReason.CONTEXT_CAPACITY})


def status_of(result: GenerationResult) -> str:
    """``incomplete`` for an answer that a limit cut off, a call among it or not."""
    return "incomplete" if result.finish_reason in _LIMITS else "completed"


class ResponseWriter:
    """Writes the states of one response. ``id`` is new for each writer."""

    def __init__(self, request: ResponsesRequest, model: str, options: GenerationOptions) -> None:
        self.id = new_id("resp")
        self.created_at = int(time.time())
        self._settings = _settings(request, options)
        self._model = model

    def response(
        self,
        status: str,
        output: Sequence[Item] = (),
        *,
        result: GenerationResult | None = None,
        error: ErrorReply | None = None,
    ) -> JsonDict:
        """The response in ``status``; with ``result`` it has usage and timings."""
        cut = status == "incomplete"
        response = {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": error and _error(error),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": self._model,
            "output": list(output),
            "usage": result and usage_of(result.usage),
        }
        return response | self._settings | (_report(result) if result else {})


def usage_of(counts: Usage) -> JsonDict:
    """The usage object. Nothing is charged for writing the cache, so that count is always 0."""
    return {
        "input_tokens": counts.prompt_tokens,
        "input_tokens_details": {"cached_tokens": counts.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning_tokens},
        "total_tokens": counts.total_tokens,
    }


def logprob_rows(rows: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> list[Item]:
    """One entry for each token, with its likeliest alternatives."""
    content: list[Item] = chat_logprobs(rows, token_bytes)["content"]
    return content


def _report(result: GenerationResult) -> JsonDict:
    report: JsonDict = {"timings": timings_of(result)}
    warnings = [*(renamed(on_the_wire(note)) for note in result.notes), *result.warnings]
    return report | {"warnings": warnings} if warnings else report


def _error(reply: ErrorReply) -> JsonDict:
    """The codes that clients know; the exact one is in the error event."""
    code = "server_error" if reply.status >= 500 else "invalid_prompt"
    if reply.status == 429:
        code = "rate_limit_exceeded"
    return {"code": code, "message": reply.message}


def _settings(request: ResponsesRequest, options: GenerationOptions) -> JsonDict:
    reasoning, text = request.reasoning, request.text
    return {
        "background": bool(request.background),
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": (reasoning.summary or reasoning.generate_summary) if reasoning else None,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.stored,
        "temperature": options.sampling.temperature,
        "text": {
            "format": (text.format if text else None) or {"type": "text"},
            "verbosity": "medium",
        },
        "tool_choice": request.tool_choice or "auto",
        "tools": [_tool(tool) for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": options.sampling.top_p,
        "truncation": "disabled",
        "user": request.user,
    }


def _tool(tool: JsonDict) -> JsonDict:
    return {"description": None, "parameters": None, "strict": False, **tool}
