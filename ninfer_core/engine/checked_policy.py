"""What a cache policy answers is looked at before anything is done about it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice
from typing import TypeVar

from ninfer_core.contract.cache import CachePolicy, Demand, SaveOffer, SourceCandidate, Victim
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.resources import Shortfall
from ninfer_core.engine.cache_faults import blamed_on_cache

T = TypeVar("T", SourceCandidate, Victim)

_TRUTHS = ("bool", "bool_")
"""Names of types: numpy's, which is not imported here, is a comparison's result too."""

_log = logging.getLogger(__name__)


class CheckedPolicy:
    """A cache policy, which may come from anybody. What it raises is a CacheFault. An answer that
    is none is no choice: no source, nothing kept, and victims as they come, since a request may
    wait for the room. Each method's first one is logged."""

    def __init__(self, policy: CachePolicy) -> None:
        self._policy = policy
        self._told: set[str] = set()

    @property
    def keeps(self) -> bool:
        try:
            return self._truth("keeps", self._policy.keeps)
        except Exception as error:
            self._tell("keeps", f"{type(error).__name__}: {error}")
            return False

    @blamed_on_cache
    def rank_sources(
        self, prepared: PreparedPrompt, candidates: Sequence[SourceCandidate]
    ) -> Sequence[SourceCandidate]:
        answer = self._policy.rank_sources(prepared, list(candidates))
        return self._chosen("rank_sources", answer, candidates) or ()

    @blamed_on_cache
    def victims(self, shortfall: Shortfall, candidates: Sequence[Victim]) -> Sequence[Victim]:
        answer = self._policy.victims(shortfall, list(candidates))
        chosen = self._chosen("victims", answer, candidates)
        return tuple(candidates) if chosen is None else chosen

    @blamed_on_cache
    def admit(self, offer: SaveOffer) -> bool:
        return self._truth("admit", self._policy.admit(offer))

    @blamed_on_cache
    def observe(self, demand: Demand) -> None:
        self._policy.observe(demand)

    def _truth(self, method: str, answer: object) -> bool:
        if type(answer).__name__ in _TRUTHS:
            return bool(answer)
        self._tell(method, f"{type(answer).__name__} instead of a bool")
        return False

    def _chosen(self, method: str, answer: object, candidates: Sequence[T]) -> tuple[T, ...] | None:
        """The answer, if it is candidates. A generator is gone through here, so that what it raises
        is raised here, too; one without end is cut."""
        try:
            given = iter(answer)  # type: ignore[call-overload]
        except TypeError:
            self._tell(method, f"{type(answer).__name__} instead of a sequence")
            return None
        chosen = tuple(islice(given, len(candidates) + 1))
        if not chosen:
            return ()
        if len(chosen) > len(candidates):
            self._tell(method, f"more than the {len(candidates)} that it could choose from")
            return None
        known, kind = {id(one) for one in candidates}, type(candidates[0])
        if len({id(one) for one in chosen}) < len(chosen):
            self._tell(method, "one of the candidates twice")
            return None
        for one in chosen:
            if id(one) not in known and not (type(one) is kind and one in candidates):
                self._tell(method, f"{type(one).__name__} that was not among the candidates")
                return None
        return chosen

    def _tell(self, method: str, what: str) -> None:
        if method in self._told:
            return
        self._told.add(method)
        kind = type(self._policy)
        _log.error(
            "the cache policy %s.%s answered %s with %s; such an answer is no choice",
            kind.__module__,
            kind.__qualname__,
            method,
            what,
        )
