"""``GET /metrics``: the engine's counters and the gateway's, for Prometheus.

Names that begin with ``vllm:`` mean what they mean there, so that existing dashboards work; the
engine's own begin with ``ninfer_``.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ninfer_core.contract.engine import EngineLike, EngineStats, MemorySummary
from ninfer_core.contract.errors import Unavailable
from ninfer_gateway_http.gateway import Gateway
from ninfer_gateway_http.metrics_requests import RequestMetrics
from ninfer_gateway_http.metrics_text import CONTENT_TYPE, Labels, MetricsText, Sample

router = APIRouter(tags=["server"])
_PATIENCE: Final = 2.0
"""Seconds that a report waits for what the engine says; without an answer it does without."""
_SUCCESS: Final = {
    "stop_token": "stop",
    "stop_string": "stop",
    "tool_calls": "stop",
    "output_limit": "length",
    "context_capacity": "length",
    "cancelled": "abort",
}
_STAT_COUNTERS: Final = {
    "submitted": "Requests that were accepted",
    "cached_tokens": "Prompt tokens that were not read again",
    "prefill_chunks": "Chunks of prompts that were read",
    "decode_rounds": "Decode rounds",
    "control_rounds": "Rounds that forced tokens",
    "pauses": "Requests that were paused for room",
    "replays": "Resumes that read the context again",
    "restores": "Resumes from a kept state",
    "restored_bytes": "Bytes moved by adoptions and resumes",
    "captures": "Checkpoints left by prompts",
    "kept_ends": "Checkpoints left by outputs",
    "reclaimed": "Checkpoints given up for room",
    "cache_drops": "Times that all checkpoints were dropped because a record was wrong",
    "demotions": "Checkpoints copied to the host",
    "demoted_bytes": "Bytes of checkpoints copied to the host",
}


class Asker:
    """Asks the engine from a thread of its own, one question at a time.

    A question that takes too long is left to end by itself; until then there is no new one.
    """

    def __init__(self, engine: EngineLike) -> None:
        self._engine = engine
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ninfer-metrics")
        self._asked: Future[tuple[EngineStats, MemorySummary | None]] | None = None
        self._stats = EngineStats()

    async def ask(self) -> tuple[EngineStats, MemorySummary | None]:
        """The latest counters, and the memory where the engine can say it now."""
        if self._asked is None or self._asked.done():
            self._asked = self._pool.submit(self._question)
        answer = asyncio.wrap_future(self._asked)
        done, _ = await asyncio.wait([answer], timeout=_PATIENCE)
        if not done:
            return self._stats, None
        self._stats, memory = answer.result()
        return self._stats, memory

    def _question(self) -> tuple[EngineStats, MemorySummary | None]:
        stats = self._engine.stats()
        try:
            return stats, self._engine.memory_summary()
        except Unavailable:
            return stats, None


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms as Prometheus text."""
    state = request.app.state
    gateway: Gateway = state.gateway
    if not hasattr(state, "asker"):
        state.asker = Asker(gateway.engine)
    stats, memory = await state.asker.ask()
    text = MetricsText()
    labels = {"model_name": gateway.name}
    _vllm(text, labels, stats, memory)
    _vllm_times(text, labels, gateway.metrics)
    _engine(text, gateway, stats)
    if memory is not None:
        _memory(text, memory)
    _processes(text, gateway)
    return Response(text.render(), media_type=CONTENT_TYPE)


def _vllm(
    text: MetricsText, labels: Labels, stats: EngineStats, memory: MemorySummary | None
) -> None:
    def one(value: float) -> list[Sample]:
        return [(labels, value)]

    text.gauge("vllm:num_requests_running", "Requests being computed", one(stats.running))
    text.gauge("vllm:num_requests_waiting", "Requests that wait", one(stats.waiting))
    if memory is not None:
        used = one(_used(memory))
        text.gauge("vllm:kv_cache_usage_perc", "Share of context pages in use; 1 is all", used)
    prompt, cached = one(stats.prompt_tokens), one(stats.cached_tokens)
    text.counter("vllm:prompt_tokens_total", "Prompt tokens", prompt)
    text.counter("vllm:generation_tokens_total", "Generated tokens", one(stats.generated_tokens))
    text.counter("vllm:prefix_cache_queries_total", "Prompt tokens that were looked up", prompt)
    text.counter("vllm:prefix_cache_hits_total", "Prompt tokens that were found", cached)
    text.counter("vllm:num_preemptions_total", "Requests that were paused", one(stats.pauses))
    ends: Counter[str] = Counter(dict.fromkeys(("stop", "length", "abort", "error"), 0))
    for reason, count in stats.finished.items():
        ends[_SUCCESS.get(reason, reason)] += count
    ends["error"] += sum(stats.failed.values())
    samples = [({**labels, "finished_reason": reason}, count) for reason, count in ends.items()]
    text.counter("vllm:request_success_total", "Requests that ended, by reason", samples)


def _vllm_times(text: MetricsText, labels: Labels, seen: RequestMetrics) -> None:
    for name, about, histogram in (
        ("time_to_first_token_seconds", "From submission to the first token", seen.first_token),
        ("inter_token_latency_seconds", "Between tokens, mean of each request, by token",
         seen.between_tokens),
        ("request_time_per_output_token_seconds", "Between tokens, mean of each request",
         seen.per_token),
        ("e2e_request_latency_seconds", "From submission to the end", seen.whole),
        ("request_queue_time_seconds", "Waiting for admission", seen.queue),
        ("request_prefill_time_seconds", "From admission to the first token", seen.prefill),
        ("request_decode_time_seconds", "From the first token to the end", seen.decode),
        ("request_prompt_tokens", "Prompt tokens of a request", seen.prompt_tokens),
        ("request_generation_tokens", "Generated tokens of a request", seen.generation_tokens),
    ):  # fmt: skip
        text.histogram(f"vllm:{name}", about, histogram, labels)
    drafts = (("draft", "proposed", seen.drafted), ("accepted", "accepted", seen.accepted))
    for name, verb, count in drafts:
        about = f"Draft tokens that were {verb}"
        text.counter(f"vllm:spec_decode_num_{name}_tokens_total", about, [(labels, count)])


def _draft_costs(text: MetricsText, costs_ms: Mapping[str, Any]) -> None:
    """What start-up measured, by rows; ``drafts`` verified or made."""
    samples = []
    for rows, costs in costs_ms.items():
        drawn = {f"drawn_{part}": known for part, known in costs.get("drawn", {}).items()}
        for part, known in (costs | drawn).items():
            if part == "drawn":
                continue
            for drafts, cost in enumerate(known if isinstance(known, list) else [known]):
                labels = {"rows": rows, "drafts": str(drafts), "part": part}
                samples.append((labels, cost / 1e3))
    if samples:
        about = (
            "Seconds of a plain round, of verifying drafts and of making them, measured at start; "
            "drawn_ of rounds that draw by a law"
        )
        text.gauge("ninfer_draft_cost_seconds", about, samples)


def _engine(text: MetricsText, gateway: Gateway, stats: EngineStats) -> None:
    ready = gateway.engine.availability().ready
    text.gauge("ninfer_ready", "Whether new requests are accepted", int(ready))
    text.gauge("ninfer_requests_paused", "Requests that are paused for room", stats.paused)
    text.gauge("ninfer_requests_open", "Requests whose reply is open", gateway.open_requests)
    text.gauge("ninfer_checkpoints", "Kept contexts", stats.checkpoints)
    for name, about in _STAT_COUNTERS.items():
        text.counter(f"ninfer_{name}_total", about, getattr(stats, name))
    failed = _by("code", stats.failed)
    text.counter("ninfer_requests_failed_total", "Requests that failed, by code", failed)
    batches = {str(rows): count for rows, count in sorted(stats.rows_by_batch.items())}
    text.counter("ninfer_rounds_total", "Decode rounds, by rows", _by("rows", batches))
    _draft_costs(text, gateway.model.details.get("draft", {}).get("costs_ms", {}))
    text.counter(
        "ninfer_reuse_total", "Admissions, by what reuse came to", _by("reason", stats.reuse)
    )
    tiers = _by("tier", stats.reuse_tiers)
    text.counter("ninfer_reuse_tier_total", "Adoptions, by where the point lay", tiers)
    replies = [
        ({"method": method, "route": route, "status": str(status)}, count)
        for (method, route, status), count in sorted(gateway.metrics.replies.items())
    ]
    text.counter("ninfer_http_replies_total", "Replies, by route and status", replies)


def _memory(text: MetricsText, memory: MemorySummary) -> None:
    text.gauge("ninfer_memory_bytes", "Memory, by purpose", _by("purpose", memory.bytes))
    text.gauge("ninfer_pages", "Context pages, by group", _by("group", memory.pages_total))
    text.gauge("ninfer_pages_free", "Free context pages", _by("group", memory.pages_free))
    text.gauge("ninfer_state_slots", "Slots of state", memory.state_slots_total)
    text.gauge("ninfer_state_slots_free", "Free slots of state", memory.state_slots_free)
    total = [({"device": device.name}, device.total) for device in memory.devices]
    free = [({"device": device.name}, device.free) for device in memory.devices]
    text.gauge("ninfer_device_bytes", "Memory of the device", total)
    text.gauge("ninfer_device_free_bytes", "Free memory of the device", free)


def _processes(text: MetricsText, gateway: Gateway) -> None:
    here = os.getpid()
    pids = {"gateway": here, "engine": getattr(gateway.engine, "pid", here)}
    resident = {role: size for role, pid in pids.items() if (size := resident_bytes(pid))}
    about = "Memory of each process; both are one with --in-process"
    text.gauge("ninfer_process_resident_memory_bytes", about, _by("process", resident))
    text.gauge("process_resident_memory_bytes", "Memory of this process", resident["gateway"])


def resident_bytes(pid: int) -> int:
    """What the process holds of memory; 0 when it is gone, or where the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _used(memory: MemorySummary) -> float:
    total = sum(memory.pages_total.values())
    return 1 - sum(memory.pages_free.values()) / total if total else 0.0


def _by(label: str, values: Mapping[str, float]) -> list[Sample]:
    return [({label: name}, value) for name, value in values.items()]
