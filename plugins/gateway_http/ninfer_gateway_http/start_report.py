"""What `ninfer serve` says once it serves: one block, the address last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ninfer_core.console import start_facts
from ninfer_core.contract.engine import EngineOptions, LoadSummary, MemorySummary
from ninfer_gateway_http.settings import ServerSettings

_VARIABLES: Final = {"enable_thinking": "thinking", "tools": "tool calls"}
"""What a chat template reads, and what the model can therefore be asked for."""


def start_report(
    model: LoadSummary, settings: ServerSettings, options: EngineOptions, url: str
) -> Iterator[tuple[str, str]]:
    """Lines as kind and text."""
    yield "serving", f"{settings.model_id or model.name} ({model.architecture})"
    yield "device", ", ".join(model.devices)
    yield (
        "context",
        f"{model.max_context} tokens, {model.max_concurrency} at a time, "
        f"{options.max_pending} may wait",
    )
    yield "features", ", ".join(_features(model, options))
    # Of a device that is not the CPU, more than that was said when the engine was ready.
    if model.memory is not None and not start_facts(model):
        yield "memory", _memory(model.memory)
    if settings.cors_origins:
        yield "origins", ", ".join(settings.cors_origins)
    yield "loaded", f"in {model.seconds:.1f} s"
    key = " (API key needed)" if settings.api_keys else ""
    if url.startswith("unix:"):
        yield "url", f"{url}{key}"
    else:
        yield "page", f"{url}/"
        yield "url", f"{url}/v1{key}"


def _features(model: LoadSummary, options: EngineOptions) -> Iterator[str]:
    frontend = model.details.get("frontend", {})
    variables = frontend.get("template_variables", ())
    yield from (name for variable, name in _VARIABLES.items() if variable in variables)
    if frontend.get("constraints"):
        yield "constrained output"
    yield "no context cache" if options.cache_policy == "off" else "context cache"
    if options.kv_format:
        yield f"kv in {options.kv_format}"
    if draft := model.details.get("draft"):
        yield f"speculation by {draft['backend']}, {draft['tokens']} drafts at most"


def _memory(memory: MemorySummary) -> str:
    parts = [f"{purpose} {size / (1 << 20):,.0f} MiB" for purpose, size in memory.bytes.items()]
    return ", ".join(parts) or "none of its own"
