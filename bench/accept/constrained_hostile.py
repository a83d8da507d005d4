"""Forms that are built to explode, one after another, while a stream of another request runs.

Usage: python bench/accept/constrained_hostile.py [--drawn 40] [--seed 0] [--tokens 64]
                                                  [--only WORD] [--tokenizer FILE]

The demo model serves from a process of its own, as behind HTTP. Every form must be answered within
5 s: refused by name, with the field and for a schema the place, or compiled; what is compiled is
also produced, ``--tokens`` tokens at temperature 1.5. Prints one JSON object: the slowest answers,
and the gaps between tokens of a stream that runs beside, alone and meanwhile. With ``--tokenizer``
the same forms are also compiled for the vocabulary of that tokenizer.json. Exit status 1 if an
answer took longer, or was neither.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _hostile import Source, hostile
from _setting import print_report

from ninfer_core import RemoteEngine
from ninfer_core.contract.engine import EngineLike, EngineOptions
from ninfer_core.contract.errors import (
    ConstraintDeadEnd,
    ContextLengthExceeded,
    InvalidSchema,
    RequestError,
)
from ninfer_core.contract.events import Delta
from ninfer_core.contract.frontend import GrammarSource
from ninfer_core.contract.grammar import GrammarVocabulary
from ninfer_core.contract.requests import (
    GenerationOptions,
    PromptInput,
    ResponseFormat,
    ToolChoice,
)
from ninfer_core.contract.sampling import SamplingParams

LIMIT_SECONDS = 5.0
QUIET_SECONDS = 5.0
SHOWN = 8


class Beside:
    """A stream that never ends, until ``end`` is called: the gaps between its tokens."""

    def __init__(self, engine: EngineLike) -> None:
        self._engine = engine
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._gaps: list[float] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def taken(self) -> dict[str, float]:
        """Gaps since the last call, in ms."""
        with self._lock:
            gaps, self._gaps = sorted(self._gaps), []
        if not gaps:
            return {"tokens": 0}
        places = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
        last = len(gaps) - 1
        shares = {name: round(gaps[int(last * p)] * 1e3, 1) for name, p in places.items()}
        return {"tokens": len(gaps), **shares}

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        question = PromptInput(messages=[{"role": "user", "content": "count"}])
        options = GenerationOptions(max_new_tokens=400, ignore_eos=True)
        while not self._ending.is_set():
            last = None
            for event in self._engine.submit(question, options):
                if isinstance(event, Delta) and event.token_ids:
                    now = time.perf_counter()
                    if last is not None:
                        with self._lock:
                            self._gaps.append(now - last)
                    last = now
                if self._ending.is_set():
                    return


@dataclass
class Outcomes:
    """What became of the forms."""

    answers: list[tuple[float, str, str]] = field(default_factory=list)
    produced: list[tuple[float, str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        return {
            "forms": len(self.answers),
            "outcomes": dict(sorted(self.counts.items())),
            "slowest_answer_s": round(max(self.answers)[0], 2),
            "slowest": _shown(self.answers),
            "slowest_production_s": _shown(self.produced),
            "faults": self.faults[:SHOWN],
        }


def ask(engine: EngineLike, source: Source, tokens: int, seed: int, outcomes: Outcomes) -> None:
    """Ask for one form, and for what it leads to."""
    name, prompt = source[0], _prompt(source)
    sampling = SamplingParams(temperature=1.5, seed=seed)
    options = GenerationOptions(sampling=sampling, max_new_tokens=tokens, thinking_budget=0)
    started = time.perf_counter()
    try:
        handle = engine.submit(prompt, options)
    except (ContextLengthExceeded, InvalidSchema) as error:
        outcomes.answers.append((time.perf_counter() - started, name, error.message[:100]))
        outcomes.counts[error.code] += 1
        if not error.param or not error.message:
            outcomes.faults.append(f"{name}: nameless {error!r}")
        return
    except RequestError as error:
        outcomes.answers.append((time.perf_counter() - started, name, error.message[:100]))
        outcomes.faults.append(f"{name}: {type(error).__name__} {error.message[:200]}")
        return
    answered = time.perf_counter()
    outcomes.answers.append((answered - started, name, "compiled"))
    _produce(handle, name, answered, outcomes)


def _prompt(source: Source) -> PromptInput:
    _, kind, value = source
    question = [{"role": "user", "content": "x"}]
    if kind == "tools":
        mode, tools = value
        return PromptInput(messages=question, tools=tools, tool_choice=ToolChoice(mode=mode))
    wanted: Any = ResponseFormat(kind=kind, value=value)  # type: ignore[arg-type]
    return PromptInput(messages=question, response_format=wanted)


def _produce(handle: Any, name: str, since: float, outcomes: Outcomes) -> None:
    try:
        result = handle.result()
    except ConstraintDeadEnd as error:
        outcomes.counts["dead end"] += 1
        outcomes.faults.append(f"{name}: {error.message[:200]}")
        return
    finally:
        handle.close()
    outcomes.counts["compiled"] += 1
    outcomes.produced.append((time.perf_counter() - since, name, result.text[:40]))


def compiled_for(vocabulary: GrammarVocabulary, sources: list[Source]) -> dict[str, Any]:
    """The same forms without a model, compiled one by one for ``vocabulary``."""
    from ninfer_grammar_xgrammar.backend import open_backend

    backend, outcomes = open_backend(vocabulary), Outcomes()
    backend.load()
    framing = {"start": 0, "stages": [{"part": "it", "exits": {}, "early": {}, "end": True}]}
    values = {"json_schema": "schema", "regex": "pattern", "grammar": "source", "choice": "values"}
    started_with: Source = ("", "choice", ["a"])  # waits until all is ready
    for name, kind, value in (started_with, *(s for s in sources if s[1] in values)):
        part = {"kind": kind, values[kind]: value, "param": "it", "closed": True}
        try:
            text = json.dumps({"parts": {"it": part}})
        except RecursionError:  # so nobody can send it
            continue
        source = GrammarSource(kind, text, json.dumps(framing), name.encode())
        started = time.perf_counter()
        try:
            backend.check(source)
            backend.compile(source)
            said = "compiled"
        except InvalidSchema as error:
            said = error.message[:100]
            outcomes.counts[error.code] += 1
        except RequestError as error:
            said = error.message[:100]
            outcomes.faults.append(f"{name}: {type(error).__name__} {said}")
        if not name:
            continue
        outcomes.counts["compiled"] += said == "compiled"
        outcomes.answers.append((time.perf_counter() - started, name, said))
        _say(outcomes.answers[-1])
    return {"vocabulary": len(vocabulary.token_bytes), **outcomes.report()}


def vocabulary_of(path: Path) -> GrammarVocabulary:
    """Of a tokenizer.json whose tokens are spelled byte by byte; added tokens spell no text."""
    from ninfer_qwen3_5.frontend.tokenizer import TextTokenizer

    tokenizer = TextTokenizer(path.read_bytes())
    added = frozenset(tokenizer.added.values())
    texts = [b"" if i in added else tokenizer.bytes_of(i) for i in range(tokenizer.vocab_size)]
    return GrammarVocabulary(token_bytes=texts, ends=frozenset(sorted(added)[:1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("drawn", 40), ("seed", 0), ("tokens", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", default="", help="forms whose name has this in it")
    parser.add_argument("--tokenizer", type=Path)
    args = parser.parse_args()
    sources = [s for s in hostile(args.seed, args.drawn) if args.only in s[0]]
    outcomes = Outcomes()
    options = EngineOptions(
        devices=("cpu",), max_concurrency=4, max_context=1024, cache_policy="off"
    )
    with RemoteEngine.open("demo", options) as engine:
        beside = Beside(engine)
        time.sleep(QUIET_SECONDS)
        alone = beside.taken()
        for number, source in enumerate(sources):
            ask(engine, source, args.tokens, args.seed + number, outcomes)
            _say(outcomes.answers[-1])
        report = {**outcomes.report(), "gaps_alone_ms": alone, "gaps_beside_ms": beside.taken()}
        beside.end()
    passed = report["slowest_answer_s"] <= LIMIT_SECONDS and not outcomes.faults
    if args.tokenizer:
        report["large"] = compiled_for(vocabulary_of(args.tokenizer), sources)
        passed &= report["large"]["slowest_answer_s"] <= LIMIT_SECONDS
        passed &= not report["large"]["faults"]
    print_report(report, passed)


def _say(answer: tuple[float, str, str]) -> None:
    print(f"{answer[0]:6.2f} s  {answer[1]}: {answer[2]}", file=sys.stderr)


def _shown(times: list[tuple[float, str, str]]) -> list[list[Any]]:
    return [[round(seconds, 2), *rest] for seconds, *rest in sorted(times, reverse=True)[:SHOWN]]


if __name__ == "__main__":
    main()
