"""Compiled parts: each is worked out once for all who ask, and kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from ninfer_core.contract.errors import EngineFailure, Overloaded
from ninfer_core.contract.grammar import GrammarVocabulary
from ninfer_grammar_xgrammar.attempts import Attempt, Attempts, Unfit, asked_for
from ninfer_grammar_xgrammar.kept import Kept
from ninfer_grammar_xgrammar.lowered import Lowered, key_of
from ninfer_grammar_xgrammar.parts import refuse
from ninfer_grammar_xgrammar.trials.client import Tries

if TYPE_CHECKING:
    from ninfer_grammar_xgrammar.library import Library

Part = dict[str, Any]
Compiled = tuple[Any, int]
"""What the library made of a part, and its bytes."""

COMPILE_SECONDS = 3.5
"""How long a request waits for what it asks for itself, from the source on. What was begun in this
process by then goes on, for whoever asks next; a trial ends."""
OWN_SECONDS = 60.0
"""The same for a part in which the request has no say but names, so that its size is known."""
UNFIT_SECONDS = 60.0
"""How long a part that was found unfit is refused unseen; a machine may have been busy."""


@dataclass(slots=True, eq=False)
class Flight:
    """A part that is worked out, and how many wait for it."""

    key: str
    part: Part
    future: Future[Compiled] = field(default_factory=Future)
    attempt: Attempt | None = None
    waiting: int = 0


class Flights:
    """Thread safe."""

    def __init__(
        self,
        vocabulary: GrammarVocabulary,
        lowered: Lowered,
        library: Callable[[], Library],
        trials: Tries,
    ) -> None:
        self._lock = threading.Lock()
        self._lowered = lowered
        self._library = library
        self._attempts = Attempts(vocabulary, trials)
        self._kept = Kept()
        self._flights: dict[str, Flight] = {}
        self._unfit: dict[str, tuple[float, str]] = {}

    def needs_trial(self, part: Part) -> bool:
        """Whether it is neither kept nor known to be unfit, nor of a known size."""
        key = key_of(part)
        with self._lock:
            unfit = time.monotonic() < self._unfit.get(key, (0.0, ""))[0]
            return asked_for(part) and key not in self._kept.parts and not unfit

    def get(self, part: Part, started: float | None = None) -> Compiled:
        """``started``: when the whole request for it began, now if it is left out. Raises
        InvalidSchema and Overloaded, and whatever the library raises."""
        key, started = key_of(part), time.monotonic() if started is None else started
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                return found
            until, why = self._unfit.get(key, (0.0, ""))
            if time.monotonic() < until:
                refuse(part, "unsupported", why)
            flight = self._flights.get(key)
            begun = flight is not None
            if flight is None:
                flight = self._flights[key] = Flight(key, part)
            flight.waiting += 1
        if not begun:
            self._begin(flight)
        return self._wait(flight, part, started)

    def _wait(self, flight: Flight, part: Part, started: float) -> Compiled:
        seconds = COMPILE_SECONDS if asked_for(part) else OWN_SECONDS
        try:
            return flight.future.result(max(0.0, started + seconds - time.monotonic()))
        except FutureTimeout:
            self._give_up(flight, part, seconds)
        except Unfit as error:
            refuse(part, "unsupported", str(error))

    def _give_up(self, flight: Flight, part: Part, seconds: float) -> NoReturn:
        with self._lock:
            flight.waiting -= 1
            attempt = flight.attempt
            begun = attempt is not None and attempt.begun
            last = asked_for(part) and not begun and flight.waiting == 0
            if last and self._flights.get(flight.key) is flight:
                del self._flights[flight.key]  # who asks from now on begins anew
        if last and attempt is not None:
            attempt.give_up()
        if not begun:
            raise Overloaded(
                "the form was not begun in time: others are being compiled", hint="try again"
            )
        why = f"takes longer than {seconds:g} seconds to compile"
        refuse(part, "unsupported", f"{why}; simplify it, or try again when it is done")

    def _begin(self, flight: Flight) -> None:
        try:
            flight.attempt = attempt = Attempt(flight.part, self._lowered.ebnf(flight.part))
            library = self._library()
            # no daemon: a process that ends amid a compile would be aborted
            threading.Thread(
                target=self._fly, args=(flight, attempt, library), name="ninfer-grammar-compile"
            ).start()
        except BaseException as error:  # also where no thread can be started
            self._land(flight, error=error)

    def _fly(self, flight: Flight, attempt: Attempt, library: Library) -> None:
        try:
            compiled = self._attempts.compiled(attempt, library)
            self._land(flight, (compiled, int(compiled.memory_size_bytes)))
        except BaseException as error:
            self._land(flight, error=error)

    def _land(
        self, flight: Flight, result: Compiled | None = None, error: BaseException | None = None
    ) -> None:
        with self._lock:
            if self._flights.get(flight.key) is flight:
                del self._flights[flight.key]
            if result is not None:
                self._kept.put(flight.key, *result)
            elif isinstance(error, Unfit):
                now = time.monotonic()
                self._unfit = {key: it for key, it in self._unfit.items() if it[0] > now}
                self._unfit[flight.key] = now + UNFIT_SECONDS, str(error)
        if result is not None:
            flight.future.set_result(result)
        else:
            flight.future.set_exception(error or EngineFailure("a compile gave nothing"))
