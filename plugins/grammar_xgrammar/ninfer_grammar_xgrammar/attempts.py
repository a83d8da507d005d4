"""From a part to what the library makes of it: tried first, where that may take any time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ninfer_core.contract.errors import InvalidSchema, Overloaded
from ninfer_core.contract.grammar import GrammarVocabulary
from ninfer_grammar_xgrammar.ebnf import to_ebnf
from ninfer_grammar_xgrammar.pace import TooSlow
from ninfer_grammar_xgrammar.parts import part_grammar
from ninfer_grammar_xgrammar.trials.client import Trial, Tries, Verdict
from ninfer_grammar_xgrammar.trials.endings import ending

if TYPE_CHECKING:
    from ninfer_grammar_xgrammar.library import Library

COLD_COMPILES = 2
"""At once, and as many trials."""
TRIAL_SECONDS = 3.0
"""For what a request asks for itself: to compile, in the process for trials, and to give masks."""
BLAMED_SHARE = 0.8
"""Of the time that trials took: a form that worked for as much was hardly kept from working."""
BLAMED_SECONDS = 2.0
"""Of work, of all threads: what takes more is not compiled within a request on an idle machine
either, as it is compiled twice."""
QUICK_SECONDS = 0.25
"""What compiles as fast as that waits for no other compile."""
MANY_STATES = 512
"""Of an expression whose masks take too long otherwise."""
MANY_POSITIONS = 2_048
MANY_LOOKS = 1 << 24
"""Of such a one with more states, positions, and those times the entries of the vocabulary: for
each, the library looks at them all when it compiles."""


class Unfit(Exception):
    """The part cannot be enforced. ``str`` says why."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One part on its way. ``begun``: the library compiles it, which cannot be ended;
    ``given_up``: nobody waits for it."""

    part: dict[str, Any]
    ebnf: str
    begun: bool = False
    given_up: bool = False
    trial: Trial | None = None

    def give_up(self) -> None:
        """A trial of it ends, or does not begin."""
        self.given_up = True
        if self.trial is not None:
            self.trial.end()


class Attempts:
    """Bounded in number, and what may take any time is bounded in time. Thread safe."""

    def __init__(self, vocabulary: GrammarVocabulary, trials: Tries) -> None:
        self._entries = len(vocabulary.token_bytes)
        self._trials = trials
        self._trying = threading.Semaphore(COLD_COMPILES)
        self._cold = threading.Semaphore(COLD_COMPILES)

    def compiled(self, attempt: Attempt, library: Library) -> Any:
        """Raises Unfit, Overloaded, and TrialsBroken for trials that cannot be made."""
        if not asked_for(attempt.part):
            return self._first(attempt, lambda ebnf: self._probed(attempt, library, ebnf))
        ebnf, verdict = self._first(attempt, self._tried_within(attempt))
        with self._cold if verdict.seconds > QUICK_SECONDS else nullcontext():
            if attempt.given_up:
                raise _refusal(Verdict("ended"))
            attempt.begun = True
            compiled = library.compile(ebnf)
        if verdict.outcome == "raised":  # and not here, where it would be told as it is
            raise Unfit(f"cannot be compiled: {verdict.why}")
        return compiled

    def _first(self, attempt: Attempt, make: Callable[[str], Any]) -> Any:
        """Of the spellings of a part, the first whose masks are quick enough."""
        for ebnf in self._spellings(attempt):
            try:
                return make(ebnf)
            except TooSlow:
                continue
        raise Unfit("takes too long to enforce token by token; simplify it")

    def _spellings(self, attempt: Attempt) -> Iterator[str]:
        """As it stands, and with its expressions written out."""
        yield attempt.ebnf
        positions = min(MANY_POSITIONS, MANY_LOOKS // self._entries)
        try:
            other = to_ebnf(part_grammar(attempt.part, MANY_STATES, positions))
        except InvalidSchema:  # it is too large in this way
            return
        if other != attempt.ebnf:
            yield other

    def _probed(self, attempt: Attempt, library: Library, ebnf: str) -> Any:
        with self._cold:
            attempt.begun = True
            compiled = library.compile(ebnf)
            library.probe(compiled)
            return compiled

    def _tried_within(self, attempt: Attempt) -> Callable[[str], tuple[str, Verdict]]:
        """All trials of an attempt have :data:`TRIAL_SECONDS` together, with what it takes to write
        the expressions out."""
        left, work, last = TRIAL_SECONDS, 0.0, time.monotonic()

        def tried(ebnf: str) -> tuple[str, Verdict]:
            nonlocal left, work, last
            if work:
                left -= time.monotonic() - last
            verdict = self._tried(attempt, ebnf, left) if left > 0 else Verdict("long")
            left, work, last = left - verdict.elapsed, work + verdict.work, time.monotonic()
            if verdict.outcome == "slow":
                raise TooSlow
            if verdict.outcome not in ("done", "raised"):
                raise _refusal(verdict, work, TRIAL_SECONDS - left)
            return ebnf, verdict

        return tried

    def _tried(self, attempt: Attempt, ebnf: str, seconds: float) -> Verdict:
        with self._trying:
            if attempt.given_up:
                return Verdict("ended")
            attempt.trial = trial = self._trials.begin(ebnf, seconds)
            if attempt.given_up:
                trial.end()
            return trial.verdict()


def _refusal(verdict: Verdict, work: float = 0.0, elapsed: float = 0.0) -> Exception:
    if verdict.outcome == "long" and work >= min(BLAMED_SECONDS, BLAMED_SHARE * elapsed):
        return Unfit(f"takes longer than {TRIAL_SECONDS:g} seconds to compile; simplify it")
    if verdict.outcome == "large":
        return Unfit("takes too much memory to compile; simplify it")
    if verdict.outcome == "died" and verdict.why == ending(-signal.SIGKILL):
        # not by the process for trials, which says so: the system had no memory left
        return Overloaded(f"the trial of the form {verdict.why}", hint="try again")
    if verdict.outcome == "died":
        return Unfit(f"cannot be compiled: the process that tried it {verdict.why}; simplify it")
    if verdict.outcome == "lost":
        return Overloaded(f"the process that tries forms {verdict.why}", hint="try again")
    return Overloaded("the form was not tried in time: others are at work", hint="try again")


def asked_for(part: dict[str, Any]) -> bool:
    """Whether a schema, an expression or a grammar of the request stands in ``part``; of others
    the size is known."""
    items = [*part.get("items", ()), *([part["item"]] if "item" in part else ())]
    own = part["kind"] in ("text", "seq", "alt", "optional", "loop", "json_object")
    loose = part["kind"] == "members" and part["enforce"] is False
    return not (own or loose) or any(map(asked_for, items))
