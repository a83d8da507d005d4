"""From the engine's results to chat completions: whole ones and chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ninfer_core.contract.errors import Cancelled
from ninfer_core.contract.events import (
    Channel,
    Delta,
    FinishReason,
    GenerationResult,
    ToolDelta,
)
from ninfer_gateway_http.errors import on_the_wire
from ninfer_gateway_http.logprobs import TokenBytes as TokenBytes
from ninfer_gateway_http.logprobs import chat_logprobs, prompt_logprobs
from ninfer_gateway_http.usage import timings_block, total_timings, total_usage, usage_of

JsonDict = dict[str, Any]

_FINISH: Final = {
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.OUTPUT_LIMIT: "length",
    FinishReason.CONTEXT_CAPACITY: "length",
}


def finish_reason(result: GenerationResult) -> str:
    """The wire's word for the end. A call that the limit cut off is ``length``, never
    ``tool_calls``. Raises Cancelled for a result that nobody should take for whole."""
    if result.finish_reason is FinishReason.CANCELLED:
        raise Cancelled("the request was cancelled")
    if result.finish_reason.natural and result.tool_calls:
        return "tool_calls"
    return _FINISH[result.finish_reason]


def report(results: Sequence[GenerationResult]) -> JsonDict:
    """Timings of all choices together, and what was odd about them."""
    counts = total_usage([result.usage for result in results])
    times = total_timings([result.timings for result in results])
    said: JsonDict = {"timings": timings_block(counts, times, len(results))}
    warnings = [text for result in results for text in warnings_of(result)]
    return said | {"warnings": list(dict.fromkeys(warnings))} if warnings else said


def usage_report(results: Sequence[GenerationResult], n: int) -> JsonDict:
    """The usage of all choices together, of which ``n`` answer each prompt; it counts once."""
    counts = total_usage([result.usage for result in results])
    read = counts.prompt_tokens // n
    return usage_of(replace(counts, prompt_tokens=read, cached_tokens=counts.cached_tokens // n))


def warnings_of(result: GenerationResult) -> list[str]:
    return [*map(on_the_wire, result.notes), *result.warnings]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatWriter:
    """Writes everything that is sent back for one chat request.

    ``shown`` says whether the thought is; ``prompt_ids`` are sent, and those of the answer, where
    they were asked for.
    """

    model: str
    token_bytes: TokenBytes
    logprobs: bool = False
    shown: bool = True
    prompt_ids: list[int] | None = None
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def bare(self) -> bool:
        return not self.logprobs and self.prompt_ids is None

    def whole(self, results: Sequence[GenerationResult]) -> JsonDict:
        """The whole answer. Raises Cancelled."""
        choices = [self._choice(index, result) for index, result in enumerate(results)]
        reply = self._envelope("chat.completion", choices)
        reply |= {"usage": usage_report(results, len(results))} | report(results)
        return reply | self._prompt(results[0])

    def opening(self, index: int) -> JsonDict:
        """The first chunk of a choice, which names the role."""
        chunk = self._chunk(index, {"role": "assistant", "content": ""})
        if self.prompt_ids is not None:
            chunk["prompt_token_ids"] = self.prompt_ids
        return chunk

    def empty(self, index: int) -> JsonDict:
        """A chunk that adds nothing to the choice."""
        return self._chunk(index, {})

    def delta(self, index: int, delta: Delta) -> JsonDict | None:
        """The chunk of one delta; None when it carries nothing that was asked for."""
        rows = delta.logprobs if self.logprobs else ()
        fields = _delta_fields(delta, self.shown)
        ids = delta.token_ids if self.prompt_ids is not None else ()
        if not fields and not rows and not ids:
            return None
        logprobs = chat_logprobs(rows, self.token_bytes) if rows else None
        chunk = self._chunk(index, fields, logprobs=logprobs)
        if ids:
            chunk["choices"][0]["token_ids"] = list(ids)
        return chunk

    def closing(self, index: int, result: GenerationResult) -> JsonDict:
        """The chunk with the finish reason and the timings. Raises Cancelled."""
        chunk = self._chunk(index, {}, finish=finish_reason(result), stop=result.stop_match)
        chunk |= report([result])
        if result.prompt_logprobs:
            chunk["prompt_logprobs"] = prompt_logprobs(result.prompt_logprobs, self.token_bytes)
        return chunk

    def last(self) -> JsonDict:
        """A chunk without choices, for the usage."""
        return self._envelope("chat.completion.chunk", [])

    def _choice(self, index: int, result: GenerationResult) -> JsonDict:
        rows = chat_logprobs(result.logprobs, self.token_bytes) if self.logprobs else None
        choice: JsonDict = {
            "index": index,
            "message": _message(result, self.shown),
            "logprobs": rows,
            "finish_reason": finish_reason(result),
            "stop_reason": result.stop_match,
        }
        if self.prompt_ids is not None:
            choice["token_ids"] = list(result.token_ids)
        return choice

    def _prompt(self, result: GenerationResult) -> JsonDict:
        """What was asked for about the prompt, which all choices share."""
        said: JsonDict = {}
        if self.prompt_ids is not None:
            said["prompt_token_ids"] = self.prompt_ids
        if result.prompt_logprobs:
            said["prompt_logprobs"] = prompt_logprobs(result.prompt_logprobs, self.token_bytes)
        return said

    def _chunk(
        self,
        index: int,
        delta: JsonDict,
        *,
        logprobs: JsonDict | None = None,
        finish: str | None = None,
        stop: str | int | None = None,
    ) -> JsonDict:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        if finish is not None:
            choice["stop_reason"] = stop
        return self._envelope("chat.completion.chunk", [choice])

    def _envelope(self, kind: str, choices: list[JsonDict]) -> JsonDict:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def _message(result: GenerationResult, shown: bool) -> JsonDict:
    content = result.text or (None if result.tool_calls else "")
    message: JsonDict = {"role": "assistant", "content": content, "refusal": None}
    if result.reasoning and shown:
        message |= _reasoning(result.reasoning)
    if result.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in result.tool_calls
        ]
    return message


def _reasoning(text: str) -> JsonDict:
    """Both spellings that clients know."""
    return {"reasoning_content": text, "reasoning": text}


def _delta_fields(delta: Delta, shown: bool) -> JsonDict:
    if delta.tool is not None:
        return {"tool_calls": [_tool_fields(delta.tool)]}
    if delta.text and delta.channel is Channel.REASONING:
        return _reasoning(delta.text) if shown else {}
    if delta.text and delta.channel is Channel.CONTENT:
        return {"content": delta.text}
    return {}


def _tool_fields(tool: ToolDelta) -> JsonDict:
    if tool.name is None:
        return {"index": tool.index, "function": {"arguments": tool.arguments}}
    return {
        "index": tool.index,
        "id": tool.id,
        "type": "function",
        "function": {"name": tool.name, "arguments": tool.arguments},
    }
