"""From the engine's results to whole messages: content blocks, stop reason, usage."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

from ninfer_core.contract.errors import Cancelled
from ninfer_core.contract.events import FinishReason, GenerationResult, GenerationStart, Usage
from ninfer_gateway_http.anthropic.thinking import signature_of
from ninfer_gateway_http.usage import timings_of

JsonDict = dict[str, Any]

_STOPS: Final = {
    FinishReason.STOP_TOKEN: "end_turn",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.OUTPUT_LIMIT: "max_tokens",
    FinishReason.CONTEXT_CAPACITY: "max_tokens",
}


@dataclass(frozen=True, slots=True)
class MessageWriter:
    """Writes what is sent back for one request. ``model`` is the label that was asked for;
    ``shown`` False leaves the text of thoughts out."""

    model: str
    shown: bool = True
    id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")

    def message(self, result: GenerationResult) -> JsonDict:
        """The whole answer. Raises Cancelled."""
        reply = self._envelope(_content(result, self.shown), input_usage(result.usage))
        reply |= stop_of(result)
        reply["usage"] = usage_of(result.usage)
        return reply | report_of(result)

    def opening(self, start: GenerationStart) -> JsonDict:
        """The message as it stands before its first block."""
        counts = Usage(
            prompt_tokens=start.prompt_tokens,
            completion_tokens=0,
            cached_tokens=start.reused_tokens,
        )
        return self._envelope([], input_usage(counts) | {"output_tokens": 0})

    def _envelope(self, content: list[JsonDict], usage: JsonDict) -> JsonDict:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


def stop_of(result: GenerationResult) -> JsonDict:
    """Why the message ended. A call that the limit cut off is ``max_tokens``, never ``tool_use``.
    Raises Cancelled for a result that nobody should take for whole."""
    finish = result.finish_reason
    if finish is FinishReason.CANCELLED:
        raise Cancelled("the request was cancelled")
    called = finish.natural and bool(result.tool_calls)
    stopped = finish is FinishReason.STOP_STRING and not called
    return {
        "stop_reason": "tool_use" if called else _STOPS[finish],
        "stop_sequence": result.stop_match if stopped else None,
    }


def input_usage(counts: Usage) -> JsonDict:
    """The three parts of a prompt: read anew, written to the cache, found in the cache. What is
    kept for later costs nothing here, so that the second is always zero."""
    return {
        "input_tokens": counts.prompt_tokens - counts.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached_tokens,
    }


def usage_of(counts: Usage) -> JsonDict:
    return {
        **input_usage(counts),
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"thinking_tokens": counts.reasoning_tokens},
    }


def report_of(result: GenerationResult) -> JsonDict:
    """Extensions: where the time went, and warnings about the answer."""
    report: JsonDict = {"timings": timings_of(result)}
    return report | {"warnings": list(result.warnings)} if result.warnings else report


def thinking_block(thought: str, *, shown: bool) -> JsonDict:
    return {
        "type": "thinking",
        "thinking": thought if shown else "",
        "signature": signature_of(thought, shown=shown),
    }


def _content(result: GenerationResult, shown: bool) -> list[JsonDict]:
    blocks = []
    if result.reasoning:
        blocks.append(thinking_block(result.reasoning, shown=shown))
    if result.text:
        blocks.append({"type": "text", "text": result.text})
    for call in result.tool_calls:
        arguments = json.loads(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks
