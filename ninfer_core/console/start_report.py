"""What an engine on a GPU holds once it is ready: lines for people, one object for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from ninfer_core.console.failures import say
from ninfer_core.contract.engine import A16, DeviceUse, LoadSummary, MemorySummary
from ninfer_core.contract.resources import PAGE_TOKENS

_GIB: Final = 1 << 30


def start_facts(summary: LoadSummary) -> dict[str, Any]:
    """Seconds, bytes by purpose, pages, slots and devices, and what drafts cost; empty for an
    engine on the CPU."""
    memory = summary.memory
    if memory is None or _on_cpu(summary):
        return {}
    draft = summary.details.get("draft")
    activations = summary.details.get("activations")
    return ({"draft": draft} if draft else {}) | {
        **({"activations": activations} if activations else {}),
        "seconds": summary.seconds,
        "warm_up_seconds": summary.warm_up_seconds,
        "bytes": dict(memory.bytes),
        "page_tokens": PAGE_TOKENS,
        "pages": dict(memory.pages_total),
        "pages_of_all_rows": _wanted(summary),
        "state_slots": memory.state_slots_total,
        "kept_state_slots": memory.kept_slots,
        "kept_pages": memory.kept_pages,
        "devices": [asdict(device) for device in memory.devices],
    }


def say_start(summary: LoadSummary) -> None:
    """A few lines on stderr; of an engine on the CPU only how --max-gap-ms fixed the chunk. A note
    when the context memory holds less than all requests at their full length."""
    memory = summary.memory
    if gap := summary.details.get("max_gap"):
        say("start", _gap_line(gap))
    if memory is None or _on_cpu(summary):
        return
    for device in memory.devices:
        say("start", _device_line(device))
    say("start", _memory_line(memory))
    if memory.kept_slots or memory.kept_pages:
        say("start", _kept_line(memory))
    if line := _activations_line(summary.details.get("activations") or {}):
        say("start", line)
    if (draft := summary.details.get("draft")) and draft.get("costs_ms"):
        say("start", _draft_line(draft))
    say(
        "start",
        f"ready in {summary.seconds:.1f} s, {summary.warm_up_seconds:.1f} s of them warm-up",
    )
    pages, wanted = sum(memory.pages_total.values()), _wanted(summary)
    if 0 < pages < wanted:
        say(
            "note",
            f"context memory holds {pages * PAGE_TOKENS:,} tokens; {summary.max_concurrency} "
            f"requests of --max-context {summary.max_context} can fill {wanted * PAGE_TOKENS:,}: "
            "then some wait or are computed again",
        )


def _draft_line(draft: Mapping[str, Any]) -> str:
    """What all K drafts cost with one row, beside a plain round."""
    costs = draft["costs_ms"]["1"]
    return (
        f"{draft['backend']} with {draft['tokens']} drafts: a plain round {costs['plain']:.2f} ms, "
        f"one that verifies them {costs['verify'][-1]:.2f} ms, making them "
        f"{costs['draft'][-1]:.2f} ms"
    )


def _activations_line(facts: Mapping[str, Any]) -> str | None:
    if facts.get("a8"):
        return (
            f"activations of prompts in 8 bits for products with {facts['a8']} of "
            f"{facts['matrices']} matrices, --activations a16 keeps 16"
        )
    return "activations in 16 bits, as asked" if facts.get("asked") == A16 else None


def _on_cpu(summary: LoadSummary) -> bool:
    return all(name.partition(":")[0] == "cpu" for name in summary.devices)


def _wanted(summary: LoadSummary) -> int:
    """Pages with which every row reaches the full context."""
    return -(-summary.max_context // PAGE_TOKENS) * summary.max_concurrency


def _device_line(device: DeviceUse) -> str:
    return (
        f"{device.name} {device.model}, {_gib(device.free)} free of {_gib(device.total)}, "
        f"{device.graphs} graphs"
    )


def _memory_line(memory: MemorySummary) -> str:
    sizes = dict(memory.bytes)
    pages = sum(memory.pages_total.values())
    counts = {
        "kv": f" ({pages:,} pages, {pages * PAGE_TOKENS:,} tokens)",
        "state": f" ({memory.state_slots_total} slots)",
        "pinned": " of the host",
    }
    return " · ".join(
        f"{purpose} {_gib(size)}{counts.get(purpose, '')}" for purpose, size in sizes.items()
    )


def _gap_line(gap: Mapping[str, Any]) -> str:
    wait = gap["gap_ms"][gap["chunk"]]
    return (
        f"--max-gap-ms {gap['bound_ms']:g}: prompts are read in chunks of {gap['chunk']} tokens, "
        f"which keep a stream waiting {wait:.1f} ms at most"
    )


def _kept_line(memory: MemorySummary) -> str:
    return (
        f"of these {memory.kept_slots} slots and {memory.kept_pages * PAGE_TOKENS:,} tokens are "
        "for kept contexts, --cache off does without"
    )


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"
