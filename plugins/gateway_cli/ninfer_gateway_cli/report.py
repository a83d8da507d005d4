"""What is said about an answer on stderr."""

from __future__ import annotations

from ninfer_core.contract.events import GenerationResult, ToolCall


def tool_line(call: ToolCall) -> str:
    return f"tool call {call.id}: {call.name}({call.arguments})"


def timing_line(result: GenerationResult) -> str:
    """Tokens, seconds and rates of prompt and answer, and why it ended."""
    usage, timings = result.usage, result.timings
    cached = f" ({usage.cached_tokens} reused)" if usage.cached_tokens else ""
    parts = [
        f"prompt {_rate(usage.prompt_tokens - usage.cached_tokens, timings.prefill)}{cached}",
        f"answer {_rate(usage.completion_tokens, timings.decode)}",
    ]
    if usage.reasoning_tokens:
        parts.append(f"{usage.reasoning_tokens} of them thinking")
    if timings.queue >= 0.1:
        parts.append(f"queued {timings.queue:.1f} s")
    return " · ".join([*parts, result.finish_reason.value])


def _rate(tokens: int, seconds: float) -> str:
    rate = f" ({tokens / seconds:.1f}/s)" if seconds > 0 and tokens else ""
    return f"{tokens} tokens in {seconds:.2f} s{rate}"
