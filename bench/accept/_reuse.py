"""Engines that keep contexts, what their Programs executed, and engines that keep nothing.

The reference executes every prompt from the root: either split at its own restore points, or by the
very spans (chunks, and tokens one by one) that lie behind the state that the other one adopted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ninfer_core.contract.engine import EngineOptions
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.spans import ExecutedSpan
from ninfer_core.engine.policies import OffPolicy

CHUNK = 128


@dataclass(slots=True)
class Run:
    """One request in one Program: where it started, by which ``trail``; prompt rows launched and
    prompt rows that the model ran; the spans of the whole prompt, known once it has ``ended``."""

    prepared: PreparedPrompt
    frontier: int
    trail: Any
    launched: int = 0
    computed: int = 0
    spans: tuple[ExecutedSpan, ...] = ()
    ended: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class Watch:
    """Counts what is executed for each prepared prompt. With ``ways`` a prompt that has one begins
    by executing that way."""

    ways: Mapping[int, Run] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)

    def attach(self, program: Any) -> None:
        self._watch_units(program._units)
        self._watch_launches(program)

    def of(self, prepared: PreparedPrompt) -> Run:
        """Nothing, for a request that was given up before it was admitted."""
        return self.runs.get(id(prepared)) or Run(prepared, 0, None)

    def wait_ended(self, prompts: Iterable[PreparedPrompt], seconds: float = 60) -> None:
        """Wait until nothing of these runs any more. Where rounds are launched ahead, an answer
        comes before the sequence ends: its row is in the next round, too."""
        for prepared in prompts:
            if not self.of(prepared).ended.wait(seconds):
                raise AssertionError(f"a sequence did not end within {seconds} s of its answer")

    def _watch_units(self, units: Any) -> None:
        admit, runner = units.admit, _chunks_of(units)
        chunk = getattr(runner, name := "run" if hasattr(runner, "run") else "chunk")

        def watched_admit(sequence: Any) -> None:
            prepared = sequence.request.prepared
            way = self.ways.get(id(prepared))
            if way is not None:
                sequence.trail, sequence.replay_to = way.trail, way.frontier
            trail = sequence.trail.until(sequence.frontier)
            self.runs[id(prepared)] = Run(prepared, sequence.frontier, trail)
            admit(sequence)

        def watched_chunk(sequence: Any, tokens: list[int], *places: Any) -> Any:
            self.of(sequence.request.prepared).computed += len(tokens)
            return chunk(sequence, tokens, *places)

        units.admit = watched_admit
        setattr(runner, name, watched_chunk)

    def _watch_launches(self, program: Any) -> None:
        sequences = program._contexts.sequences
        prefill, finish = program.launch_prefill, program.finish

        def watched_prefill(row: Any) -> Any:
            run = self.of(sequences.get(row.sequence).request.prepared)
            run.launched += row.permit.need.tokens
            return prefill(row)

        def watched_finish(handle: Any, *, keep: bool) -> Any:
            sequence = sequences.get(handle)
            length, run = sequence.prompt_length, self.of(sequence.request.prepared)
            if sequence.frontier >= length:
                run.spans = sequence.trail.spans(length)
            run.ended.set()
            return finish(handle, keep=keep)

        program.launch_prefill, program.finish = watched_prefill, watched_finish


@contextmanager
def open_watched(
    watch: Watch, *, keeps: bool = True, model: str = "demo", **options: Any
) -> Iterator[tuple[Any, Any]]:
    """The demo model, or ``model``, split at restore points either way, and its Program. Without
    ``keeps`` nothing is ever adopted or kept."""
    from ninfer_core import Engine
    from ninfer_core.instance import instance_factory

    settings = {
        "devices": ("cpu",),
        "max_concurrency": 4,
        "max_pending": 4096,
        "max_context": 4096,
        "prefill_chunk": CHUNK,
        "cache_policy": "reuse",
        "extra_state_slots": 500 if keeps else 0,
        "queue_timeout": None,
        **options,
    }
    if not keeps:
        settings["kv_tokens"] = settings["max_concurrency"] * settings["max_context"]
    chosen = EngineOptions(**settings)
    inner = instance_factory(model, chosen)
    programs: list[Any] = []

    def factory() -> Any:
        opened = inner()
        programs.append(opened.instance.program)
        watch.attach(programs[0])
        return opened if keeps else replace(opened, cache_policy=OffPolicy())

    with Engine.open(model, chosen, factory=factory) as engine:
        watch.runs.clear()
        yield engine, programs[0]
        if engine.stats().cache_drops:
            raise AssertionError("a record of a kept context was wrong, and all were dropped")


def described(spans: Iterable[ExecutedSpan]) -> list[str]:
    return [f"{'steps' if span.stepped else 'chunk'} to {span.stop}" for span in spans]


def _chunks_of(units: Any) -> Any:
    """What runs chunks of prompts: on a device with a queue, or on the CPU."""
    queued = getattr(units, "_chunks", None)
    return queued if queued is not None else units._forwards._executor
