"""Seam: model sources, names that stand for a model on disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from ninfer_core.hookspecs.markers import hookspec
from ninfer_core.hookspecs.records import Entry, Seam


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSourceEntry(Entry):
    """A model name; ``resolve`` loads ``() -> pathlib.Path`` of a ``.ninfer`` or HF directory.

    A source of several models says in ``argument`` how the choice is spelled ("SIZE"): MODEL is
    then ``name:choice``, and ``resolve`` loads ``(str) -> pathlib.Path``.
    """

    LOADERS: ClassVar[tuple[str, ...]] = ("resolve",)

    resolve: str
    argument: str = ""

    @property
    def spelling(self) -> str:
        """What a user types as MODEL."""
        return f"{self.name}:{self.argument}" if self.argument else self.name


class ModelSourceSpecs:
    """Hooks for plug-ins that bring or fetch models."""

    @hookspec
    def ninfer_model_sources(self) -> Iterable[ModelSourceEntry]:
        """Offer model sources.

        Since: api 1.0.
        Called: once per process, when plug-ins load; ``resolve`` runs when MODEL is the name.
        Returns: entries; ``name`` is what a user types as MODEL.
        Threading: main thread.
        Example::

            @hookimpl
            def ninfer_model_sources():
                yield ModelSourceEntry(name="demo", resolve="ninfer_demo_model.source:resolve")
        """
        return ()


MODEL_SOURCES: Final = Seam("ninfer_model_sources", "model source", ModelSourceEntry)
