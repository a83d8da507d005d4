"""Seam: draft backends for speculative decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ninfer_core.hookspecs.markers import hookspec
from ninfer_core.hookspecs.records import Entry, Seam, Verdict, always


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """What a drafter may ask of the target model before it is loaded."""

    architecture: str
    layers: int
    hidden_size: int
    vocab_size: int
    mtp_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftBackendEntry(Entry):
    """A drafter.

    ``load`` loads what, called without arguments, makes a ``DraftBackend``; ``max_drafts`` bounds
    the drafts per round.
    """

    load: str
    max_drafts: int
    accepts: Callable[[TargetFacts], Verdict] = always


class SpeculationSpecs:
    """Hooks for plug-ins that propose draft tokens."""

    @hookspec
    def ninfer_draft_backends(self) -> Iterable[DraftBackendEntry]:
        """Offer draft backends.

        Since: api 1.0.
        Called: once per process, when plug-ins load; active only when its plug-in is named.
        Returns: entries; a refusal by ``accepts`` stops the start with its reason.
        Threading: main thread, before any tensor library is imported.
        Example::

            @hookimpl
            def ninfer_draft_backends():
                yield DraftBackendEntry(
                    name="echo", max_drafts=4, load="ninfer_echo.drafter:open_drafter"
                )
        """
        return ()


DRAFT_BACKENDS: Final = Seam(
    "ninfer_draft_backends", "draft backend", DraftBackendEntry, active=True
)
