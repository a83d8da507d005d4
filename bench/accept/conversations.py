"""Conversations over kept contexts: what is read again, and whether answers stay the same.

Usage: python bench/accept/conversations.py [--conversations 500] [--first 0] [--turns 6]
       [--seed 0] [--device cpu] [--model demo] [--batch 20]

Each follow-up may launch the prompt rows behind the last message boundary that it shares with any
earlier prompt and answer, and 64 more. Tokens, log-probabilities, text and calls must equal those
of an engine that keeps nothing and splits prompts at the same places; where the adopted state went
another way (tokens of an answer ran one by one, or chunks ended elsewhere), those of an engine that
executes that very way from the root. Prints one JSON object; on stderr, how far it is.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from _reuse import Run, Watch, described, open_watched
from _said import Said
from _setting import print_report
from _talks import KINDS, Ask, Talk, talks

from ninfer_core.contract.events import Delta, FinishReason, GenerationResult
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.requests import CacheMode, GenerationOptions

SLACK = 64
LANES = 8
BATCH = 20
"""Conversations per engine, whose stores hold all that they leave."""

SLOTS, TOKENS = 12, 4096
"""State slots, and tokens of context memory, for all that a conversation leaves."""


@dataclass(slots=True)
class Turn:
    """One request. ``boundary``: the last message boundary that it shares with anything earlier;
    ``edit``: a user message stands there behind an answer; ``shared``: the tokens that it shares,
    up to a boundary or not."""

    talk: int
    ask: Ask
    prepared: PreparedPrompt
    boundary: int
    edit: bool
    shared: int
    result: GenerationResult
    run: Run

    @property
    def options(self) -> GenerationOptions:
        return options_of(self.ask)

    @property
    def launched_at_most(self) -> int:
        return self.prepared.length - self.boundary + SLACK

    @property
    def whole(self) -> bool:
        return self.result.finish_reason is not FinishReason.CANCELLED


def options_of(ask: Ask) -> GenerationOptions:
    return GenerationOptions(sampling=ask.sampling, max_new_tokens=ask.max_new_tokens, logprobs=1)


def lead(engine: Any, watch: Watch, led: Sequence[Talk]) -> list[Turn]:
    """Lead conversations, a few at a time, a turn of each in turn."""
    said, turns = Said.by(engine), []
    waiting = list(enumerate(led))
    open_talks: dict[int, tuple[Talk, Ask]] = {}
    while waiting or open_talks:
        while waiting and len(open_talks) < LANES:
            number, talk = waiting.pop(0)
            open_talks[number] = talk, next(talk)
        wave = _wave(engine, watch, said, {n: ask for n, (_, ask) in open_talks.items()})
        turns += wave
        for turn in wave:
            talk, _ = open_talks.pop(turn.talk)
            with suppress(StopIteration):
                open_talks[turn.talk] = talk, talk.send(turn.result)
    return turns


def _wave(engine: Any, watch: Watch, said: Said, asks: dict[int, Ask]) -> list[Turn]:
    """Ask all at once; what they say counts as earlier from the next wave on."""
    prepared = {number: engine.prepare(ask.prompt) for number, ask in asks.items()}
    ids = {number: prompt.token_ids for number, prompt in prepared.items()}
    shared = {n: said.places(ids[n], [ids[m] for m in asks if m != n]) for n in asks}
    handles = {n: engine.submit(prepared[n], options_of(ask)) for n, ask in asks.items()}
    for number, ask in asks.items():
        if ask.cancel_after is not None:
            give_up(handles[number], ask.cancel_after)
    turns = []
    for number, ask in asks.items():
        result = handles[number].result(120)
        run = watch.of(prepared[number])
        turns.append(Turn(number, ask, prepared[number], *shared[number], result, run))
        if ask.prompt.cache.mode is not CacheMode.DISABLED:
            read = run.frontier + run.launched
            said.add(ids[number][:read], result.token_ids)
    return turns


def give_up(handle: Any, after: int) -> None:
    """Cancel as soon as ``after`` tokens have come."""
    seen = 0
    while seen < after:
        event = handle.next_event(120)
        if event is None:
            return
        seen += len(event.token_ids) if isinstance(event, Delta) else 0
    handle.cancel()


def evidence(result: GenerationResult) -> tuple[Any, ...]:
    calls = [(call.name, call.arguments) for call in result.tool_calls]
    return (
        result.token_ids,
        result.logprobs,
        result.text,
        result.reasoning,
        calls,
        result.finish_reason,
    )


def answers_as(turn: Turn, reference: GenerationResult) -> bool:
    """Equal to the bit; a cancelled answer is a beginning of the other one."""
    if turn.whole:
        return evidence(turn.result) == evidence(reference)
    count = len(turn.result.token_ids)
    return (
        turn.result.token_ids == reference.token_ids[:count]
        and turn.result.logprobs == reference.logprobs[:count]
    )


@dataclass(slots=True)
class Verdict:
    """Faults of a batch by kind of fault, and what the batch consisted of."""

    faults: list[dict[str, Any]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def fault(self, kind: str, turn: Turn, **facts: Any) -> None:
        self.faults.append(
            {"fault": kind, "conversation": turn.talk, "prompt": turn.prepared.length, **facts}
        )


def judge_rows(turns: Iterable[Turn], verdict: Verdict) -> None:
    """Rows launched: as reported, as counted at the model, and at most what the line allows."""
    for turn in turns:
        run, length = turn.run, turn.prepared.length
        cached = turn.result.usage.cached_tokens
        verdict.counts["requests"] += 1
        verdict.counts["follow-ups"] += turn.boundary > 0
        verdict.counts["prompt tokens"] += length
        verdict.counts["rows launched"] += run.launched
        if run.launched != run.computed or (turn.whole and cached + run.launched != length):
            facts = {"cached": cached, "launched": run.launched, "computed": run.computed}
            verdict.fault("counts disagree", turn, **facts)
        if run.launched > turn.launched_at_most:
            facts = {"launched": run.launched, "at_most": turn.launched_at_most}
            verdict.fault(
                "rows of an edit" if turn.edit else "rows",
                turn,
                boundary=turn.boundary,
                cached=cached,
                **facts,
            )
        if cached > turn.shared:
            verdict.fault("shared what is not equal", turn, cached=cached, shared=turn.shared)


def judge_answers(turns: Sequence[Turn], verdict: Verdict, **place: Any) -> None:
    """Against prompts from the root at their own splits, and where the spans differ, at those that
    lie behind the adopted state."""
    watch = Watch()
    with open_watched(watch, keeps=False, max_concurrency=LANES, **place) as (engine, _):
        references = _answers(engine, watch, turns)
        others = _judge_own_splits(turns, references, watch, verdict)
        watch.ways = {id(turn.prepared): turn.run for turn in others}
        _judge_other_ways(others, _answers(engine, watch, others), watch, verdict)


def _judge_own_splits(
    turns: Sequence[Turn], references: Sequence[GenerationResult], watch: Watch, verdict: Verdict
) -> list[Turn]:
    """Returns those that went another way."""
    others = []
    for turn, reference in zip(turns, references, strict=True):
        if turn.whole and not turn.run.spans:
            verdict.fault("its way was not seen", turn)
        if not turn.run.spans or turn.run.spans == watch.of(turn.prepared).spans:
            verdict.counts["same splits"] += 1
            if not answers_as(turn, reference):
                verdict.fault("answer", turn, got=turn.result.text, wanted=reference.text)
        else:
            others.append(turn)
            verdict.counts["other splits"] += 1
            verdict.counts["other splits, other tokens"] += (
                turn.result.token_ids != reference.token_ids[: len(turn.result.token_ids)]
            )
    return others


def _judge_other_ways(
    turns: Sequence[Turn], references: Sequence[GenerationResult], watch: Watch, verdict: Verdict
) -> None:
    for turn, reference in zip(turns, references, strict=True):
        verdict.counts["steps among spans"] += any(span.stepped for span in turn.run.spans)
        went, way = watch.of(turn.prepared).spans, turn.run.spans
        if went != way:
            ways = {"got": described(went), "wanted": described(way)}
            verdict.fault("the reference went another way", turn, **ways)
        if not answers_as(turn, reference):
            verdict.fault("answer by its spans", turn, got=turn.result.text, wanted=reference.text)


def _answers(engine: Any, watch: Watch, turns: Sequence[Turn]) -> list[GenerationResult]:
    handles = [engine.submit(turn.prepared, turn.options) for turn in turns]
    results = [handle.result(600) for handle in handles]
    watch.wait_ended(turn.prepared for turn in turns)
    return results


def judged(led: Sequence[Talk], **options: Any) -> Verdict:
    """Lead the conversations in one engine and judge every request. ``devices`` and ``model`` of
    ``options`` are those of the references, too."""
    watch, verdict = Watch(), Verdict()
    with open_watched(watch, max_concurrency=LANES, **options) as (engine, program):
        turns = lead(engine, watch, led)
        # Rows of requests that were let go may still be in flight: stores are read at rest.
        if not engine.drain(60):
            verdict.faults.append({"fault": "requests do not end"})
        program.check()
        stats = engine.stats()
    judge_rows(turns, verdict)
    place = {name: options[name] for name in ("devices", "model") if name in options}
    judge_answers(turns, verdict, **place)
    if stats.reclaimed or stats.cached_tokens != sum(t.result.usage.cached_tokens for t in turns):
        verdict.faults.append({"fault": "stats", "reclaimed": stats.reclaimed})
    if stats.cache_drops:
        verdict.faults.append({"fault": "the cache was dropped", "times": stats.cache_drops})
    verdict.counts["captures"] += stats.captures
    verdict.counts["kept ends"] += stats.kept_ends
    return verdict


def in_batches(
    numbers: range, seed: int, turns: Callable[[int], int], batch: int = BATCH, **place: Any
) -> Verdict:
    """Conversations by number, every batch in an engine of its own."""
    whole, room = Verdict(), {"extra_state_slots": SLOTS * batch, "kv_tokens": TOKENS * batch}
    for first in numbers[::batch]:
        count = min(batch, numbers.stop - first)
        part = judged(talks(first, count, seed, turns), **room, **place)
        whole.faults += [{"batch": first, **fault} for fault in part.faults]
        whole.counts.update(part.counts)
        done = {"conversations": [first, first + count], "requests": part.counts["requests"]}
        print(json.dumps({**done, "faults": part.faults}), file=sys.stderr, flush=True)
        # What watches a Program is part of it: its tensors go when cycles are looked for.
        gc.collect()
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first conversation")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="demo", help="a source, an artifact or a directory")
    parser.add_argument("--batch", type=int, default=BATCH, help="conversations per engine")
    args, started = parser.parse_args(), time.monotonic()
    place = {"devices": (args.device,), "model": args.model}
    numbers = range(args.first, args.first + args.conversations)
    verdict = in_batches(numbers, args.seed, lambda index: args.turns, args.batch, **place)
    report = {"accept": "conversations", **vars(args), "kinds": list(KINDS)}
    report["seconds"] = round(time.monotonic() - started, 1)
    report |= {"counts": dict(verdict.counts), "faults": verdict.faults}
    print_report(report, not verdict.faults)


if __name__ == "__main__":
    main()
