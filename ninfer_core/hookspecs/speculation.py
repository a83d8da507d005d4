"""Seam: draft backends for speculative decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from ninfer_core.hookspecs.markers import hookspec
from ninfer_core.hookspecs.records import Entry, Seam, Verdict, always


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """What a drafter may ask of the target model before it is loaded. ``kv_heads`` and
    ``head_size`` are those of its full attention; ``components`` maps each component of the
    artifact to its configuration, so that a drafter finds its own."""

    architecture: str
    layers: int
    hidden_size: int
    vocab_size: int
    mtp_layers: int = 0
    kv_heads: int = 0
    head_size: int = 0
    components: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftBackendEntry(Entry):
    """A drafter.

    ``load`` loads what, called with the ``TargetFacts``, makes a ``DraftBackend``; ``max_drafts``
    bounds the drafts per round, of which there are ``usual_drafts`` unless others are asked for.

    A drafter that is published as a checkpoint of its own names the class names of its
    ``config.json`` in ``architectures``; ``describe`` loads
    ``(config, TargetFacts) -> ComponentSpec``, which tells the converter what the drafter consists
    of and raises ArtifactError for one that does not fit the target.
    """

    LOADERS: ClassVar[tuple[str, ...]] = ("load", "describe")

    load: str
    max_drafts: int
    usual_drafts: int = 3
    accepts: Callable[[TargetFacts], Verdict] = always
    architectures: tuple[str, ...] = ()
    describe: str = ""


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
