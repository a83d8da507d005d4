"""What is said about an answer on stderr."""

from __future__ import annotations

from typing import Annotated

import typer

from ninfer_core.contract.events import GenerationResult, Timings, ToolCall, Usage


def tool_line(call: ToolCall) -> str:
    return f"tool call {call.id}: {call.name}({call.arguments})"


VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Report on the context cache even if it gave none.")
]


def timing_line(result: GenerationResult, *, verbose: bool = False) -> str:
    """Tokens, seconds and rates of prompt and answer, and why it ended.

    What came from the context cache is named where it was any, with ``verbose`` always.
    """
    usage, timings = result.usage, result.timings
    parts = [f"prompt {_rate(usage.prompt_tokens - usage.cached_tokens, timings.prefill)}"]
    if usage.cached_tokens or verbose:
        parts.append(_cached(usage, timings))
    parts.append(f"answer {_rate(usage.completion_tokens, timings.decode)}")
    if usage.reasoning_tokens:
        parts.append(f"{usage.reasoning_tokens} of them thinking")
    if timings.queue >= 0.1:
        parts.append(f"queued {timings.queue:.1f} s")
    return " · ".join([*parts, result.finish_reason.value])


def _cached(usage: Usage, timings: Timings) -> str:
    reason = timings.reuse_reason.value
    return f"cached {usage.cached_tokens} of {usage.prompt_tokens} tokens ({reason})"


def _rate(tokens: int, seconds: float) -> str:
    rate = f" ({tokens / seconds:.1f}/s)" if seconds > 0 and tokens else ""
    return f"{tokens} tokens in {seconds:.2f} s{rate}"
