"""The grammar backend: checks sources without the library, compiles them with it, and keeps what
was compiled."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ninfer_core.contract.errors import (
    EngineFailure,
    InvalidSchema,
    Overloaded,
    RequestError,
    Unsupported,
)
from ninfer_core.contract.frontend import CompiledGrammar, GrammarSource
from ninfer_core.contract.grammar import GrammarVocabulary, Matcher
from ninfer_grammar_xgrammar.ebnf import to_ebnf
from ninfer_grammar_xgrammar.lowered import Lowered, key_of
from ninfer_grammar_xgrammar.matcher import Framed, Stage, StageMatcher
from ninfer_grammar_xgrammar.pace import TooSlow
from ninfer_grammar_xgrammar.parts import part_grammar, refuse

if TYPE_CHECKING:
    from ninfer_grammar_xgrammar.library import Library

CACHE_BYTES = 256 << 20
COLD_COMPILES = 2
COMPILE_SECONDS = 3.5
"""How long a request waits for what it asks for itself, from the source on; what was begun goes on,
for whoever asks next."""
OWN_SECONDS = 60.0
"""The same for a part in which the request has no say but names, so that its size is known."""
MANY_STATES = 512
"""Of an expression whose masks take too long otherwise."""
MANY_POSITIONS = 2_048
MANY_LOOKS = 1 << 24
"""Of such a one with more states, positions, and those times the entries of the vocabulary: for
each, the library looks at them all when it compiles."""
SLOW_SECONDS = 60.0
"""How long a part whose masks took too long is refused unseen; a machine may have been busy."""


def open_backend(vocabulary: GrammarVocabulary) -> XGrammarCompiler:
    """Load nothing yet."""
    return XGrammarCompiler(vocabulary)


@dataclass(slots=True)
class _Cache:
    """Compiled parts by their JSON, the least recently used first."""

    parts: OrderedDict[str, tuple[Any, int]] = field(default_factory=OrderedDict)
    bytes: int = 0

    def get(self, key: str) -> tuple[Any, int] | None:
        if key in self.parts:
            self.parts.move_to_end(key)
        return self.parts.get(key)

    def put(self, key: str, compiled: Any, size: int) -> None:
        self.parts[key] = (compiled, size)
        self.bytes += size
        while self.bytes > CACHE_BYTES and len(self.parts) > 1:
            _, (_, gone) = self.parts.popitem(last=False)
            self.bytes -= gone


class XGrammarCompiler:
    """See the contract's ``GrammarCompiler``. Thread safe."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._cold = threading.Semaphore(COLD_COMPILES)
        self._library: Library | None = None
        self._broken: Exception | None = None
        self._cache = _Cache()
        self._flights: dict[str, Future[tuple[Any, int]]] = {}
        self._lowered = Lowered()
        self._slow: dict[str, float] = {}
        self._free = _free_words(vocabulary)

    def load(self) -> None:
        """Raises Unsupported for a library that is broken."""
        part = {"kind": "json_object", "param": "response_format"}
        try:
            self._loaded().open(self._part(part)[0]).fill(np.zeros_like(self._free))
        except RequestError:
            raise
        except Exception as error:
            with self._loading:
                self._library, self._broken = None, error
            self._loaded()

    def check(self, source: GrammarSource) -> None:
        """Lower every part. Needs no library."""
        for part in json.loads(source.text)["parts"].values():
            self._lowered.ebnf(part)

    def compile(self, source: GrammarSource) -> CompiledGrammar:
        """Raises InvalidSchema, also for a part that takes longer than :data:`COMPILE_SECONDS`,
        Overloaded where those of other requests took that long, Unsupported where the library does
        not load."""
        framing, parts = json.loads(source.framing), json.loads(source.text)["parts"]
        self._loaded(_field(parts) or "response_format")  # its seconds are nobody's fault
        started = time.monotonic()
        compiled = {name: self._part(part, started) for name, part in parts.items()}
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

    def _part(self, part: dict[str, Any], started: float | None = None) -> tuple[Any, int]:
        """``started``: when the whole request for it began, now if it is left out."""
        key, started = key_of(part), time.monotonic() if started is None else started
        with self._lock:
            found = self._cache.get(key)
            if found is not None:
                return found
            if time.monotonic() < self._slow.get(key, 0.0):
                _refuse_slow(part)
            flight = self._flights.get(key)
            begun = flight is not None
            if flight is None:
                flight = self._flights[key] = Future()
        if not begun:
            self._begin(key, part, flight)
        seconds = COMPILE_SECONDS if _asked_for(part) else OWN_SECONDS
        try:
            return flight.result(max(0.0, started + seconds - time.monotonic()))
        except FutureTimeout:
            if not flight.running():
                raise Overloaded(
                    "the form was not begun in time: others are being compiled", hint="try again"
                ) from None
            why = f"takes longer than {seconds:g} seconds to compile"
            refuse(part, "unsupported", f"{why}; simplify it, or try again when it is done")
        except TooSlow:
            _refuse_slow(part)

    def _begin(self, key: str, part: dict[str, Any], flight: Future[tuple[Any, int]]) -> None:
        try:
            ebnf = self._lowered.ebnf(part)
            library = self._loaded()
        except BaseException as error:
            self._land(key, flight, error=error)
            return
        name = "ninfer-grammar-compile"
        args = (key, part, ebnf, library, flight)
        # no daemon: a process that ends amid a compile would be aborted
        threading.Thread(target=self._compile, args=args, name=name).start()

    def _compile(
        self,
        key: str,
        part: dict[str, Any],
        ebnf: str,
        library: Library,
        flight: Future[tuple[Any, int]],
    ) -> None:
        try:
            with self._cold:
                flight.set_running_or_notify_cancel()
                compiled = self._quick(library, ebnf, part)
            self._land(key, flight, (compiled, int(compiled.memory_size_bytes)))
        except BaseException as error:
            self._land(key, flight, error=error)

    def _quick(self, library: Library, ebnf: str, part: dict[str, Any]) -> Any:
        """Where masks take too long, with its expressions written out. Raises TooSlow."""
        try:
            return library.compile(ebnf)
        except TooSlow:
            positions = min(MANY_POSITIONS, MANY_LOOKS // len(self._vocabulary.token_bytes))
            try:
                other = to_ebnf(part_grammar(part, MANY_STATES, positions))
            except InvalidSchema:  # it is too large in this way
                other = ebnf
            if other == ebnf:
                raise
            return library.compile(other)

    def _land(
        self,
        key: str,
        flight: Future[tuple[Any, int]],
        result: tuple[Any, int] | None = None,
        error: BaseException | None = None,
    ) -> None:
        with self._lock:
            self._flights.pop(key, None)
            if result is not None:
                self._cache.put(key, *result)
            elif isinstance(error, TooSlow):
                now = time.monotonic()
                self._slow = {key: end for key, end in self._slow.items() if end > now}
                self._slow[key] = now + SLOW_SECONDS
        if result is not None:
            flight.set_result(result)
        else:
            flight.set_exception(error or EngineFailure("a compile gave nothing"))


def _open_library(vocabulary: GrammarVocabulary) -> Library:
    from ninfer_grammar_xgrammar.library import Library

    return Library(vocabulary)


def _field(parts: Any) -> str | None:
    """The request's field that the first of the parts comes from."""
    if isinstance(parts, dict) and isinstance(parts.get("param"), str):
        return str(parts["param"])
    inner = parts.values() if isinstance(parts, dict) else parts if isinstance(parts, list) else ()
    return next((found for found in map(_field, inner) if found is not None), None)


def _refuse_slow(part: dict[str, Any]) -> NoReturn:
    refuse(part, "unsupported", "takes too long to enforce token by token; simplify it")


def _asked_for(part: dict[str, Any]) -> bool:
    """Whether a schema, an expression or a grammar of the request stands in ``part``."""
    items = [*part.get("items", ()), *([part["item"]] if "item" in part else ())]
    own = part["kind"] in ("text", "seq", "alt", "optional", "loop", "json_object")
    loose = part["kind"] == "members" and part["enforce"] is False
    return not (own or loose) or any(map(_asked_for, items))


def _stage(stage: dict[str, Any], compiled: dict[str, tuple[Any, int]]) -> Stage:
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
