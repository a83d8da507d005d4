"""One run of ``bench chat``: the same conversations without the context cache, then with it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ninfer_core.console import Interrupt
from ninfer_core.contract.engine import EngineOptions, EngineStats
from ninfer_core.contract.requests import CacheMode
from ninfer_core.contract.resources import PAGE_TOKENS
from ninfer_core.instance import instance_factory
from ninfer_core.plugins import PluginHost
from ninfer_ops_triton.bench.chat_drive import Turn, play
from ninfer_ops_triton.bench.conditions import conditions
from ninfer_ops_triton.bench.talks import MessageTalk, Sizes, Talk, TokenTalk

if TYPE_CHECKING:
    from ninfer_core import Engine

Json = dict[str, Any]

SLOTS_OF_A_CONVERSATION: Final = 4
"""State slots for kept contexts when no number was given: the system part, the last two turns, the
end of the answer."""

_MARKS: Final = 64
"""Tokens that a template may put around one question and its answer."""
_WARM: Final = 7919
"""Number of the conversation that is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSetting:
    """What is measured; ``slots``, ``kv_tokens`` None mean room for all conversations."""

    conversations: int
    turns: int
    sizes: Sizes
    cache: str
    slots: int | None
    kv_tokens: int | None
    device: str
    kv_format: str | None
    prefill_chunk: int
    host_bytes: int | None = None

    @property
    def context(self) -> int:
        """Tokens of one conversation, in whole pages."""
        sizes = self.sizes
        tokens = sizes.system + self.turns * (sizes.user + sizes.new + _MARKS) + _MARKS
        return -(-tokens // PAGE_TOKENS) * PAGE_TOKENS

    def engine_options(self, host: PluginHost) -> EngineOptions:
        """One request at a time, and room for one conversation more than there are, as long as
        nothing else was asked for. The request might fill all of it: a planner gives no more pages
        than the requests can."""
        tokens, slots = self.kv_tokens, self.slots
        if tokens is None:
            tokens = (self.conversations + 1) * self.context
        if slots is None:
            slots = SLOTS_OF_A_CONVERSATION * self.conversations
        return EngineOptions(
            devices=(self.device,),
            plugins=host.selection.requested,
            disabled_plugins=host.selection.blocked,
            max_context=max(self.context, tokens),
            prefill_chunk=self.prefill_chunk,
            kv_tokens=tokens,
            kv_format=self.kv_format,
            cache_policy=self.cache,
            extra_state_slots=slots,
            host_bytes=self.host_bytes,
            queue_timeout=None,
        )


class ChatSession:
    """Measures the model of an artifact, with ``messages`` or with token ids."""

    def __init__(
        self,
        artifact: Path,
        setting: ChatSetting,
        host: PluginHost,
        interrupt: Interrupt,
        *,
        messages: bool,
    ) -> None:
        self._artifact = artifact
        self._setting = setting
        self._options = setting.engine_options(host)
        self._host = host
        self._interrupt = interrupt
        self._messages = messages

    def measure(self) -> Json:
        """The whole report. Raises NinferError, and Interrupted after Ctrl-C."""
        with self._interrupt.wait_for(self._open) as engine:
            self._play(engine, [self._talk(engine, _WARM)], CacheMode.DISABLED)
            off = self._play(engine, self._talks(engine), CacheMode.DISABLED)
            before = engine.stats()
            on = self._play(engine, self._talks(engine), CacheMode.READ_WRITE)
            return self._report(engine, rows(on, off), _kept(before, engine.stats()))

    def _open(self) -> Engine:
        from ninfer_core import Engine

        factory = instance_factory(self._artifact, self._options, self._host)
        return Engine.open(self._artifact, self._options, factory=factory)

    def _talks(self, engine: Engine) -> list[Talk]:
        return [self._talk(engine, number) for number in range(self._setting.conversations)]

    def _talk(self, engine: Engine, number: int) -> Talk:
        sizes = self._setting.sizes
        if self._messages:
            return MessageTalk(number, sizes, engine.tokenize)
        return TokenTalk(number, sizes, engine.load_summary().vocab_size)

    def _play(self, engine: Engine, talks: Sequence[Talk], mode: CacheMode) -> list[Turn]:
        turns, new = self._setting.turns, self._setting.sizes.new
        return list(play(engine, talks, turns, new, mode, self._interrupt.check))

    def _report(self, engine: Engine, made: list[Json], kept: Json) -> Json:
        summary, setting, options = engine.load_summary(), self._setting, self._options
        return {
            "bench": "chat",
            "model": summary.name,
            "devices": list(summary.devices),
            "setting": {
                "prompts": "messages" if self._messages else "token_ids",
                "conversations": setting.conversations,
                "turns": setting.turns,
                **asdict(setting.sizes),
                "cache": setting.cache,
                "cache_slots": options.extra_state_slots,
                "host_bytes": options.host_bytes or 0,
                "kv_tokens": options.kv_tokens,
                "kv_format": setting.kv_format,
                "prefill_chunk": summary.prefill_chunk,
                "max_context": summary.max_context,
            },
            "load_seconds": round(summary.seconds, 3),
            "memory": asdict(engine.memory_summary()),
            "requests": made,
            "turns": by_turn(made),
            "total": total(made),
            "kept": kept,
            "conditions": conditions(summary.devices),
        }


def rows(on: Sequence[Turn], off: Sequence[Turn]) -> list[Json]:
    """Every request with its counterpart without the cache, in the order of submission."""
    return [
        {
            "turn": warm.turn + 1,
            "conversation": warm.conversation + 1,
            **warm.facts(),
            "off_prompt_tokens": cold.result.usage.prompt_tokens,
            "off_ttft_ms": cold.facts()["ttft_ms"],
            "same_answer": warm.result.token_ids == cold.result.token_ids,
        }
        for warm, cold in zip(on, off, strict=True)
    ]


def by_turn(made: Sequence[Json]) -> list[Json]:
    """Sums over the conversations of one turn after the other; times are medians."""
    groups = groupby(made, key=lambda row: row["turn"])
    return [{"turn": turn, **total(list(group))} for turn, group in groups]


def total(made: Sequence[Json]) -> Json:
    """Sums of tokens, medians of times, reasons by count."""
    prompt = sum(row["prompt_tokens"] for row in made)
    cached = sum(row["cached_tokens"] for row in made)
    return {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "cached_share": round(cached / prompt, 4),
        "ttft_ms": round(statistics.median(row["ttft_ms"] for row in made), 3),
        "off_ttft_ms": round(statistics.median(row["off_ttft_ms"] for row in made), 3),
        "reasons": dict(Counter(row["reason"] for row in made)),
        "tiers": dict(Counter(row["tier"] for row in made if row["tier"])),
        "restored_bytes": sum(row["restored_bytes"] for row in made),
        "same_answers": sum(row["same_answer"] for row in made),
        "requests": len(made),
    }


def _kept(before: EngineStats, after: EngineStats) -> Json:
    """What the conversations left behind: as counted in between, and how much stands now."""
    names = ("captures", "kept_ends", "reclaimed", "restored_bytes", "demotions", "demoted_bytes")
    counted = {name: getattr(after, name) - getattr(before, name) for name in names}
    return counted | {"checkpoints": after.checkpoints}
