"""The grammar backend: checks sources without the library, and compiles them with it."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ninfer_core.contract.errors import EngineFailure, InvalidSchema, RequestError, Unsupported
from ninfer_core.contract.frontend import CompiledGrammar, GrammarSource
from ninfer_core.contract.grammar import GrammarVocabulary, Matcher
from ninfer_grammar_xgrammar.flights import Compiled, Flights
from ninfer_grammar_xgrammar.lowered import Lowered
from ninfer_grammar_xgrammar.matcher import Framed, Stage, StageMatcher
from ninfer_grammar_xgrammar.trials.client import Trials, TrialsBroken, Tries

if TYPE_CHECKING:
    from ninfer_grammar_xgrammar.library import Library


MANY_PROCESSORS = 4


def open_backend(vocabulary: GrammarVocabulary) -> XGrammarCompiler:
    """Load nothing yet, and start no process."""
    return XGrammarCompiler(vocabulary)


class XGrammarCompiler:
    """See the contract's ``GrammarCompiler``. Thread safe."""

    def __init__(self, vocabulary: GrammarVocabulary, trials: Tries | None = None) -> None:
        self._vocabulary = vocabulary
        self._loading = threading.Lock()
        self._library: Library | None = None
        self._broken: Exception | None = None
        self._lowered = Lowered()
        self._trials = Trials(vocabulary) if trials is None else trials
        self._flights = Flights(vocabulary, self._lowered, lambda: self._loaded(), self._trials)
        self._free = _free_words(vocabulary)

    def load(self) -> None:
        """Raises Unsupported for a library that is broken. The process for trials gets ready in the
        background, where there are few processors only afterwards, so as not to slow a start."""
        if (os.cpu_count() or 1) >= MANY_PROCESSORS:
            self._trials.start()
        part = {"kind": "json_object", "param": "response_format"}
        try:
            self._loaded().open(self._flights.get(part)[0]).fill(np.zeros_like(self._free))
        except RequestError:
            raise
        except Exception as error:
            with self._loading:
                self._library, self._broken = None, error
            self._loaded()
        self._trials.start()

    def check(self, source: GrammarSource) -> None:
        """Lower every part. Needs no library."""
        for part in json.loads(source.text)["parts"].values():
            self._lowered.ebnf(part)

    def compile(self, source: GrammarSource) -> CompiledGrammar:
        """Raises InvalidSchema, also for a part that takes too long, Overloaded where those of
        other requests took that long, Unsupported where the library does not load."""
        framing, parts = json.loads(source.framing), json.loads(source.text)["parts"]
        compiled = self._compiled(parts)
        stages = tuple(_stage(stage, compiled) for stage in framing["stages"])
        size = sum(size for _, size in compiled.values())
        framed = Framed(
            stages=stages,
            start=framing["start"],
            ends=self._vocabulary.ends,
            free=self._free,
            open=self._open,
            memory_bytes=size,
            prefix=framing.get("prefix", ""),
        )
        if not StageMatcher(framed).begin():
            raise InvalidSchema(
                "the message that is to be continued does not begin with what its form allows",
                param="messages",
            )
        return framed

    def open(self, compiled: CompiledGrammar) -> Matcher:
        if not isinstance(compiled, Framed):
            raise EngineFailure("a grammar was compiled by another backend")
        matcher = StageMatcher(compiled)
        matcher.begin()
        return matcher

    def close(self) -> None:
        """End the process for trials: nothing that would need one is compiled any more. It ends by
        itself with this object, and with the process that holds it."""
        self._trials.close()

    def _compiled(self, parts: dict[str, Any]) -> dict[str, Compiled]:
        param = _field(parts) or "response_format"
        try:
            self._prepare(parts, param)
            started = time.monotonic()  # what it took until here is no form's fault
            return {name: self._flights.get(part, started) for name, part in parts.items()}
        except TrialsBroken as error:
            raise Unsupported(
                f"constraints cannot be enforced, since the process that tries them {error}",
                param=param,
                hint="try again, or start with --no-plugin grammar_xgrammar",
            ) from error

    def _prepare(self, parts: dict[str, Any], param: str) -> None:
        """Here and in the process for trials the library loads at once. Raises Unsupported and
        TrialsBroken."""
        tried = any(map(self._flights.needs_trial, parts.values()))
        if tried:
            self._trials.start()
        self._loaded(param)
        if tried:
            self._trials.ready()

    def _open(self, grammar: Any) -> Any:
        return self._loaded().open(grammar)

    def _loaded(self, param: str = "response_format") -> Library:
        """The library, imported once; that takes seconds. Raises Unsupported, of ``param``, for one
        that is broken, which is found once."""
        with self._loading:
            if self._library is None and self._broken is None:
                try:
                    self._library = _open_library(self._vocabulary)
                except Exception as error:  # whatever a broken installation raises
                    self._broken = error
            if self._library is None:
                raise Unsupported(
                    "constraints cannot be enforced, since xgrammar does not load: "
                    f"{type(self._broken).__name__}: {self._broken}",
                    param=param,
                    hint="install xgrammar again, or start with --no-plugin grammar_xgrammar",
                ) from self._broken
            return self._library


def _open_library(vocabulary: GrammarVocabulary) -> Library:
    from ninfer_grammar_xgrammar.library import Library

    return Library(vocabulary)


def _field(parts: Any) -> str | None:
    """The request's field that the first of the parts comes from."""
    if isinstance(parts, dict) and isinstance(parts.get("param"), str):
        return str(parts["param"])
    inner = parts.values() if isinstance(parts, dict) else parts if isinstance(parts, list) else ()
    return next((found for found in map(_field, inner) if found is not None), None)


def _stage(stage: dict[str, Any], compiled: dict[str, Compiled]) -> Stage:
    name = stage["part"]
    return Stage(
        None if name is None else compiled[name][0],
        {int(token): after for token, after in stage["exits"].items()},
        {int(token): after for token, after in stage["early"].items()},
        bool(stage["end"]),
        stage.get("next"),
    )


def _free_words(vocabulary: GrammarVocabulary) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Tokens that have a text, as bits."""
    count = len(vocabulary.token_bytes)
    bits = np.zeros(-(-count // 32) * 32, dtype=bool)
    bits[:count] = [bool(text) for text in vocabulary.token_bytes]
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
