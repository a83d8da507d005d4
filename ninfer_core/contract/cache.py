"""The seam for cache policies: they rank facts and never see stores."""

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
class SourceCandidate:
    """A checkpoint on the prompt's path and what adopting it would cost."""

    ref: CheckpointRef
    facts: CheckpointFacts
    work: RestoreWork


@dataclass(frozen=True, slots=True)
class Victim:
    """One possible action on one checkpoint and what it would really free."""

    ref: CheckpointRef
    facts: CheckpointFacts
    action: CheckpointAction
    frees: ResourceVector


@dataclass(frozen=True, slots=True)
class SaveOffer:
    """An optional save: where, why, and what it would hold."""

    frontier: int
    kind: RestoreKind | None
    footprint: ResourceVector


@dataclass(frozen=True, slots=True)
class Demand:
    """Evidence that a frontier was wanted: ``request`` adopted or recomputed it."""

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
        """The candidates that may go, the least valuable first."""
        ...

    def admit(self, offer: SaveOffer) -> bool:
        """Whether the save is worth what it would hold."""
        ...

    def observe(self, demand: Demand) -> None:
        """Take in evidence of what is wanted."""
        ...
