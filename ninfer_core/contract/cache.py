"""The seam for cache policies: they rank facts and never see stores.

A policy runs on the engine worker and must be deterministic: no clock, no randomness, no order of
sets. What it raises costs the cache: all checkpoints are dropped, and the engine goes on.
An answer that is none (of another type, or with what was not among the candidates) is logged and no
choice: no source, nothing kept, and victims in the order in which they came.
``digest`` names an exact beginning of a prompt (tokens, media, template, salt) everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ninfer_core.contract.checkpoints import (
    CheckpointAction,
    CheckpointFacts,
    RestoreWork,
)
from ninfer_core.contract.frontend import PreparedPrompt, RestoreKind
from ninfer_core.contract.resources import CheckpointRef, ResourceVector, Shortfall


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a checkpoint comes from, as the engine knows it.

    ``order`` is the ticket of the request that left it. ``superseded`` says that its continuation
    went on: a newer request left a deeper point of it.
    """

    kind: RestoreKind = RestoreKind.GENERATION_END
    order: int = 0
    digest: bytes = b""
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class SourceCandidate:
    """A checkpoint on the prompt's path and what adopting it would cost.

    ``own_session`` says that the prompt's session key is bound to its continuation.
    ``moved_tokens`` is what the moving costs: tokens of a prompt that are read in the same time, by
    what was measured; 0 until something was.
    """

    ref: CheckpointRef
    facts: CheckpointFacts
    work: RestoreWork
    own_session: bool = False
    provenance: Provenance = Provenance()
    moved_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Victim:
    """One possible action on one checkpoint and what it would really free.

    ``fallback`` is the deepest frontier on the same path at which another checkpoint stands, 0 for
    the root: a deletion loses the tokens between the two. An action that leaves it on the host
    alone loses ``restore_tokens``: as many could be read while it comes back.
    """

    ref: CheckpointRef
    facts: CheckpointFacts
    action: CheckpointAction
    frees: ResourceVector
    fallback: int = 0
    provenance: Provenance = Provenance()
    restore_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class SaveOffer:
    """An optional save: where, why, and what it would hold.

    ``fallback`` as in :class:`Victim`; ``displaces`` are the victims that must go for it, empty
    when there is room; ``order`` is the ticket of the request that asks.
    """

    frontier: int
    kind: RestoreKind
    footprint: ResourceVector
    fallback: int = 0
    digest: bytes = b""
    order: int = 0
    displaces: tuple[Victim, ...] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """Evidence that a frontier was wanted: ``request`` (its ticket) adopted it, or computed across
    a restore point that was not there. Never of pauses, resumes and saves."""

    request: int
    frontier: int
    digest: bytes
    adopted: bool


class CachePolicy(Protocol):
    """Decides what is worth keeping. ``keeps`` False switches indexing off altogether."""

    @property
    def keeps(self) -> bool: ...

    def rank_sources(
        self, prepared: PreparedPrompt, candidates: Sequence[SourceCandidate]
    ) -> Sequence[SourceCandidate]:
        """Best first; an empty answer means root."""
        ...

    def victims(self, shortfall: Shortfall, candidates: Sequence[Victim]) -> Sequence[Victim]:
        """Those that may be carried out, the least valuable first; of several actions on one
        checkpoint the first counts. ``DEMOTE`` copies to the host where that has room for it.

        ``candidates`` are of some that were used least recently, in the order in which they came;
        of a large cache not all."""
        ...

    def admit(self, offer: SaveOffer) -> bool:
        """Whether the save is worth what it would hold and displace."""
        ...

    def observe(self, demand: Demand) -> None:
        """Take in evidence of what is wanted."""
        ...
