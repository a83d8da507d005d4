"""The cache policy that keeps what is likely to be wanted again.

Two classes. What different requests have wanted goes last, least recently wanted first; everything
else goes by the tokens that its loss would cost, per unit of what it frees, the older the cheaper.
Time is counted in tickets, so that the same requests always lead to the same decisions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from ninfer_core.contract.cache import (
    Demand,
    Provenance,
    SaveOffer,
    SourceCandidate,
    Victim,
)
from ninfer_core.contract.checkpoints import CheckpointAction
from ninfer_core.contract.frontend import PreparedPrompt, RestoreKind
from ninfer_core.contract.resources import PAGE_TOKENS, CheckpointRef, Shortfall

MAX_EVIDENCE = 256
"""Points of which demand is remembered."""

REUSED_SHARE = (3, 4)
"""How much of what the cache holds of the short axis may be of the reused class."""

LEAST_GAIN = PAGE_TOKENS
"""A block: less is read again faster than it is kept."""

CLOSING = 2
"""Tokens that close a message behind the end of an answer: what goes on there has no more of them
to read than what goes on from the boundary."""

HALF_LIFE = 8
"""Tickets after which an unwanted point is worth half."""

SUPERSEDED = 8
"""How much less a point is worth whose continuation went on without it."""


@dataclass(slots=True)
class Evidence:
    """Who wanted a point: the first request, how many others since, and the latest."""

    first: int
    others: int
    latest: int


class ReusePolicy:
    """Sources by what they cost, victims by what they are worth, saves by what they displace.

    An automatic save must spare a later prompt ``least_gain`` tokens.
    """

    def __init__(self, least_gain: int = LEAST_GAIN) -> None:
        self._least_gain = least_gain
        self._evidence: OrderedDict[bytes, Evidence] = OrderedDict()
        self._now = 0

    @property
    def keeps(self) -> bool:
        return True

    def rank_sources(
        self, prepared: PreparedPrompt, candidates: Sequence[SourceCandidate]
    ) -> Sequence[SourceCandidate]:
        """The cheapest way to the end of the prompt first, none that is dearer than the root."""
        worth = [one for one in candidates if _cost(one) < prepared.length]
        return sorted(worth, key=_source_order)

    def victims(self, shortfall: Shortfall, candidates: Sequence[Victim]) -> Sequence[Victim]:
        """Ordinary ones by tokens lost per unit freed, then the reused by their latest demand. What
        is worth it goes to the host, everything else is deleted."""
        axis = shortfall.axis
        candidates = self._one_action_each(candidates)
        reused = self._reused(candidates, axis)
        ordinary = [one for one in candidates if one.provenance.digest not in reused]
        wanted = [one for one in candidates if one.provenance.digest in reused]
        ordinary.sort(
            key=lambda one: (self._loss(one) / one.frees.amount(axis), *_stable_order(one))
        )
        wanted.sort(key=lambda one: (reused[one.provenance.digest], *_stable_order(one)))
        return [*ordinary, *wanted]

    def admit(self, offer: SaveOffer) -> bool:
        """Enough tokens gained, and more than the deletions lose. A point that was wanted by
        several requests may displace reused ones that were wanted longer ago, too."""
        self._now = max(self._now, offer.order)
        gain = offer.frontier - offer.fallback
        least = 1 if offer.kind is RestoreKind.EXPLICIT else self._least_gain
        if offer.kind is RestoreKind.GENERATION_END:
            least -= CLOSING
        if gain < least:
            return False
        own = self._latest_reuse(offer.digest, offer.order)
        deleted = [one for one in offer.displaces if one.action is CheckpointAction.DELETE]
        if own is not None:
            return all(self._older(victim, own) for victim in deleted)
        if any(self._is_reused(victim.provenance) for victim in deleted):
            return False
        return gain > sum(self._loss(victim) for victim in offer.displaces)

    def observe(self, demand: Demand) -> None:
        """Remember that a request wanted a point, adopted or not."""
        self._now = max(self._now, demand.request)
        known = self._evidence.pop(demand.digest, None)
        if known is None:
            known = Evidence(demand.request, 0, demand.request)
        elif demand.request != known.latest:
            known = Evidence(known.first, known.others + 1, demand.request)
        self._evidence[demand.digest] = known
        if len(self._evidence) > MAX_EVIDENCE:
            self._evidence.popitem(last=False)

    def _latest_reuse(self, digest: bytes, left_by: int) -> int | None:
        """When different requests wanted this point: the latest of them, None without two. The one
        that left it counts as one of the two."""
        known = self._evidence.get(digest)
        if known is None or (known.others == 0 and known.first == left_by):
            return None
        return known.latest

    def _is_reused(self, provenance: Provenance) -> bool:
        left = self._latest_reuse(provenance.digest, provenance.order)
        return left is not None and not provenance.superseded

    def _reused(self, candidates: Sequence[Victim], axis: str) -> dict[bytes, int]:
        """Latest demand by digest of the reused class: within its share, but for the newest."""
        known = {
            one.provenance.digest: (
                self._evidence[one.provenance.digest].latest,
                one.frees.amount(axis),
            )
            for one in candidates
            if self._is_reused(one.provenance)
        }
        share, whole = REUSED_SHARE
        room = sum(one.frees.amount(axis) for one in candidates) * share // whole
        kept: dict[bytes, int] = {}
        for digest, (latest, amount) in sorted(known.items(), key=lambda item: -item[1][0]):
            room -= amount
            if room < 0 and kept:
                break
            kept[digest] = latest
        return kept

    def _older(self, victim: Victim, latest: int) -> bool:
        if not self._is_reused(victim.provenance):
            return True
        return self._evidence[victim.provenance.digest].latest < latest

    def _one_action_each(self, candidates: Sequence[Victim]) -> list[Victim]:
        """For each checkpoint the best of what could be done with it."""
        actions: dict[CheckpointRef, dict[CheckpointAction, Victim]] = {}
        for one in candidates:
            actions.setdefault(one.ref, {})[one.action] = one
        return [self._best(found) for found in actions.values()]

    def _best(self, found: dict[CheckpointAction, Victim]) -> Victim:
        """The action that loses least; a copy to the host must spare a block at least, or keep what
        different requests wanted."""
        deletion = found.get(CheckpointAction.DELETE)
        others = [one for one in found.values() if one is not deletion]
        if not others:
            assert deletion is not None
            return deletion
        gentle = min(others, key=self._loss)
        if deletion is None or self._is_reused(deletion.provenance):
            return gentle
        spared = self._loss(deletion) - self._loss(gentle)
        demotes = gentle.action is CheckpointAction.DEMOTE
        return gentle if spared >= (self._least_gain if demotes else 0) else deletion

    def _loss(self, victim: Victim) -> float:
        """Tokens that would have to be read again, or could be read while it comes back, less the
        older and when superseded. A demotion moves the same bytes once more."""
        provenance = victim.provenance
        known = self._evidence.get(provenance.digest)
        touched = max(provenance.order, known.latest if known is not None else 0)
        age = max(0, self._now - touched)
        lost = max(0, victim.facts.frontier - victim.fallback) * 1.0
        if victim.action is not CheckpointAction.DELETE:
            lost = victim.restore_tokens
            lost *= 2 if victim.action is CheckpointAction.DEMOTE else 1
        lost /= 1 + age / HALF_LIFE
        return lost / SUPERSEDED if provenance.superseded else lost


def _cost(one: SourceCandidate) -> float:
    """Tokens left to read, and what is moved in terms of tokens."""
    return one.work.tokens + one.moved_tokens


def _source_order(one: SourceCandidate) -> tuple[float, int, int, bool, int]:
    own = not one.own_session
    return _cost(one), one.work.bytes, -one.facts.frontier, own, -one.provenance.order


def _stable_order(one: Victim) -> tuple[int, int, int, str]:
    """Older first, deeper first, then as they came."""
    return one.provenance.order, -one.facts.frontier, one.ref.index, one.action.value
