"""Counters of one engine. Written by the worker, read by anybody."""

from __future__ import annotations

from collections import Counter

from ninfer_core.contract.engine import EngineStats
from ninfer_core.contract.units import UnitKind
from ninfer_core.engine.request_record import RequestRecord
from ninfer_core.engine.scheduler import Scheduler


class Metrics:
    """Monotone counters; the present numbers come from their owners when asked."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """From zero again: what came before is nobody's."""
        self._submitted = 0
        self._finished: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generated_tokens = 0
        self._units: Counter[UnitKind] = Counter()
        self._rows_by_batch: Counter[int] = Counter()
        self._pauses = 0
        self._replays = 0
        self._restores = 0
        self._restored_bytes = 0
        self._reuse: Counter[str] = Counter()
        self._captures = 0
        self._kept_ends = 0
        self._reclaimed = 0
        self._reuse_tiers: Counter[str] = Counter()
        self._cache_drops = 0
        self._demotions = 0
        self._demoted_bytes = 0

    def submitted(self) -> None:
        self._submitted += 1

    def admitted(self, record: RequestRecord) -> None:
        self._prompt_tokens += record.prompt_tokens
        self._cached_tokens += record.watch.cached_tokens
        self._reuse[record.watch.reuse_reason.value] += 1
        self._restored_bytes += record.watch.restored_bytes
        if record.watch.reuse_tier is not None:
            self._reuse_tiers[record.watch.reuse_tier.value] += 1

    def unit(self, kind: UnitKind, rows: int) -> None:
        self._units[kind] += 1
        if kind is UnitKind.DECODE:
            self._rows_by_batch[rows] += 1

    def accepted(self, tokens: int) -> None:
        self._generated_tokens += tokens

    def paused(self) -> None:
        self._pauses += 1

    def resumed(self, replayed: bool, moved_bytes: int) -> None:
        self._replays += replayed
        self._restores += not replayed
        self._restored_bytes += moved_bytes

    def captured(self) -> None:
        self._captures += 1

    def kept_end(self) -> None:
        self._kept_ends += 1

    def reclaimed(self) -> None:
        self._reclaimed += 1

    def cache_dropped(self) -> None:
        self._cache_drops += 1

    def demoted(self, moved_bytes: int) -> None:
        self._demotions += 1
        self._demoted_bytes += moved_bytes

    def finished(self, reason: str) -> None:
        self._finished[reason] += 1

    def failed(self, code: str) -> None:
        self._failed[code] += 1

    def stats(
        self, scheduler: Scheduler, waiting: int, outstanding: int, checkpoints: int
    ) -> EngineStats:
        return EngineStats(
            running=scheduler.running(),
            waiting=waiting,
            paused=len(scheduler.paused),
            outstanding=outstanding,
            submitted=self._submitted,
            finished=dict(self._finished),
            failed=dict(self._failed),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            prefill_chunks=self._units[UnitKind.PREFILL],
            decode_rounds=self._units[UnitKind.DECODE],
            control_rounds=self._units[UnitKind.CONTROL],
            rows_by_batch=dict(self._rows_by_batch),
            pauses=self._pauses,
            replays=self._replays,
            restores=self._restores,
            restored_bytes=self._restored_bytes,
            reuse=dict(self._reuse),
            captures=self._captures,
            kept_ends=self._kept_ends,
            reclaimed=self._reclaimed,
            checkpoints=checkpoints,
            reuse_tiers=dict(self._reuse_tiers),
            cache_drops=self._cache_drops,
            demotions=self._demotions,
            demoted_bytes=self._demoted_bytes,
        )
