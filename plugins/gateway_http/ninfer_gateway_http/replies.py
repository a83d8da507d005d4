"""From the engine's results to the wire: completion objects, chunks, usage, log-probabilities."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ninfer_core.contract.errors import Cancelled
from ninfer_core.contract.events import (
    Channel,
    Delta,
    FinishReason,
    GenerationResult,
    Timings,
    ToolDelta,
    Usage,
)
from ninfer_core.contract.sampling import TokenLogprobs
from ninfer_gateway_http.errors import on_the_wire

JsonDict = dict[str, Any]
TokenBytes = Callable[[Sequence[int]], list[bytes]]

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


@dataclass(frozen=True, slots=True)
class ReplyWriter:
    """Writes everything that is sent back for one request."""

    model: str
    token_bytes: TokenBytes
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(self, result: GenerationResult, *, logprobs: bool) -> JsonDict:
        """The whole answer. Raises Cancelled."""
        choice = {
            "index": 0,
            "message": _message(result),
            "logprobs": self._logprobs(result.logprobs) if logprobs else None,
            "finish_reason": finish_reason(result),
            "stop_reason": result.stop_match,
        }
        reply = self._envelope("chat.completion", [choice])
        return reply | {"usage": usage(result.usage)} | _report(result)

    def opening(self) -> JsonDict:
        """The first chunk, which names the role."""
        return self._chunk({"role": "assistant", "content": ""})

    def delta(self, delta: Delta, *, logprobs: bool) -> JsonDict | None:
        """The chunk of one delta; None when it carries nothing that was asked for."""
        rows = delta.logprobs if logprobs else ()
        fields = _delta_fields(delta)
        if not fields and not rows:
            return None
        return self._chunk(fields, logprobs=self._logprobs(rows) if rows else None)

    def closing(self, result: GenerationResult) -> JsonDict:
        """The chunk with the finish reason and the timings. Raises Cancelled."""
        chunk = self._chunk({}, finish=finish_reason(result), stop=result.stop_match)
        return chunk | _report(result)

    def usage_chunk(self, result: GenerationResult) -> JsonDict:
        """The last chunk of a stream that asked for its usage; it has no choices."""
        return self._envelope("chat.completion.chunk", []) | {"usage": usage(result.usage)}

    def _chunk(
        self,
        delta: JsonDict,
        *,
        logprobs: JsonDict | None = None,
        finish: str | None = None,
        stop: str | int | None = None,
    ) -> JsonDict:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
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

    def _logprobs(self, rows: Sequence[TokenLogprobs]) -> JsonDict:
        """One entry for each generated token, in order, whatever its channel."""
        ids = [i for row in rows for i in (row.token_id, *(t.token_id for t in row.top))]
        spelling = iter(self.token_bytes(ids))
        content = []
        for row in rows:
            entry = _entry(next(spelling), row.logprob)
            entry["top_logprobs"] = [_entry(next(spelling), top.logprob) for top in row.top]
            content.append(entry)
        return {"content": content, "refusal": None}


def usage(counts: Usage) -> JsonDict:
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.total_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning_tokens},
    }


def _timings(timings: Timings) -> JsonDict:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(timings).items()}


def _report(result: GenerationResult) -> JsonDict:
    report: JsonDict = {"timings": _timings(result.timings)}
    warnings = [*map(on_the_wire, result.notes), *result.warnings]
    return report | {"warnings": warnings} if warnings else report


def _message(result: GenerationResult) -> JsonDict:
    content = result.text or (None if result.tool_calls else "")
    message: JsonDict = {"role": "assistant", "content": content, "refusal": None}
    if result.reasoning:
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


def _delta_fields(delta: Delta) -> JsonDict:
    if delta.tool is not None:
        return {"tool_calls": [_tool_fields(delta.tool)]}
    if delta.text and delta.channel is Channel.REASONING:
        return _reasoning(delta.text)
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


def _entry(spelling: bytes, logprob: float) -> JsonDict:
    return {
        "token": spelling.decode(errors="replace"),
        "logprob": logprob,
        "bytes": list(spelling),
    }
