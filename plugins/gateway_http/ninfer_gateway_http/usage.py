"""Token counts and timings of one answer, or of the several choices of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import zip_longest
from typing import Any

from ninfer_core.contract.events import GenerationResult, Timings, Usage

JsonDict = dict[str, Any]


def total_usage(parts: Sequence[Usage]) -> Usage:
    """The counts of all choices of one request, with the prompt of each."""
    return Usage(
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        completion_tokens=sum(part.completion_tokens for part in parts),
        cached_tokens=sum(part.cached_tokens for part in parts),
        reasoning_tokens=sum(part.reasoning_tokens for part in parts),
    )


def total_timings(parts: Sequence[Timings]) -> Timings:
    """Times and counts of all choices added up; why and from where was reused is the first's."""
    if len(parts) == 1:
        return parts[0]
    added: JsonDict = {
        entry.name: sum(getattr(part, entry.name) for part in parts)
        for entry in fields(Timings)
        if isinstance(getattr(parts[0], entry.name), int | float)
    }
    for name in ("drafted", "accepted"):
        rows = zip_longest(*(getattr(part, name) for part in parts), fillvalue=0)
        added[name] = tuple(sum(row) for row in rows)
    return replace(parts[0], **added)


def usage_of(counts: Usage) -> JsonDict:
    """The OpenAI usage object."""
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.total_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning_tokens},
    }


def timings_of(result: GenerationResult) -> JsonDict:
    """The ``timings`` block of one result."""
    return timings_block(result.usage, result.timings)


def timings_block(usage: Usage, timings: Timings, answers: int = 1) -> JsonDict:
    """The ``timings`` block of so many answers together. Times in milliseconds, rates in tokens per
    second, null where nothing was measured.

    ``prompt_ms`` runs from admission to the first token, ``predicted_ms`` from the first token to
    the end, so that ``predicted_per_second`` counts the tokens after the first.
    """
    read = usage.prompt_tokens - usage.cached_tokens
    return {
        "cache_n": usage.cached_tokens,
        **pace(
            read,
            timings.prefill * 1000,
            usage.completion_tokens,
            timings.decode * 1000,
            answers=answers,
        ),
        "draft_n": sum(timings.drafted),
        "draft_n_accepted": sum(timings.accepted),
        "draft_n_by_position": list(timings.drafted),
        "draft_n_accepted_by_position": list(timings.accepted),
        "reuse_reason": timings.reuse_reason.value,
        "reuse_point": timings.reuse_point and timings.reuse_point.value,
        "reuse_tier": timings.reuse_tier and timings.reuse_tier.value,
        **_costs(timings),
    }


def pace(
    read: int, prompt_ms: float, produced: int, predicted_ms: float, *, answers: int = 1
) -> JsonDict:
    """How fast a prompt was read and ``answers`` were written; each one's first token belongs to
    the reading."""
    later = max(0, produced - answers)
    return {
        "prompt_n": read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / read if read else None,
        "prompt_per_second": _per_second(read, prompt_ms),
        "predicted_n": produced,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / later if later else None,
        "predicted_per_second": _per_second(later, predicted_ms),
    }


def _costs(timings: Timings) -> JsonDict:
    return {
        "queue_ms": timings.queue * 1000,
        "prepare_ms": timings.prepare * 1000,
        "host_ms": timings.host * 1000,
        "device_ms": timings.device * 1000,
        "rounds": timings.rounds,
        "pauses": timings.pauses,
        "replays": timings.replays,
        "restores": timings.restores,
        "restored_bytes": timings.restored_bytes,
        "captures": timings.captures,
    }


def _per_second(tokens: int, milliseconds: float) -> float | None:
    return 1000 * tokens / milliseconds if milliseconds > 0 else None
