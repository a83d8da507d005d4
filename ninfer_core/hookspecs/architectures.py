"""Seam: model architectures, with their Program, Frontend and converter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from ninfer_core.hookspecs.markers import hookspec
from ninfer_core.hookspecs.records import Entry, Seam


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureEntry(Entry):
    """A model family.

    ``architectures`` are the class names of a checkpoint's ``config.json`` that it runs.
    ``build`` loads ``(BuildRequest) -> ModelInstance``; ``frontend`` loads
    ``(FrontendRequest) -> Frontend``, which opens tokenizer, template and output sessions without
    the weights; ``converter`` loads the object that maps a Hugging Face directory to artifact
    objects. The types are those of ``ninfer_core.contract.instance``.
    """

    LOADERS: ClassVar[tuple[str, ...]] = ("build", "frontend", "converter")

    architectures: tuple[str, ...]
    build: str
    frontend: str
    converter: str = ""


class ArchitectureSpecs:
    """Hooks for plug-ins that bring a model family."""

    @hookspec
    def ninfer_architectures(self) -> Iterable[ArchitectureEntry]:
        """Offer model architectures.

        Since: api 1.0.
        Called: once per process, when plug-ins load.
        Returns: entries; an architecture class name belongs to at most one entry.
        Threading: main thread, before any tensor library is imported.
        Example::

            @hookimpl
            def ninfer_architectures():
                yield ArchitectureEntry(
                    name="echo",
                    architectures=("EchoForCausalLM",),
                    build="ninfer_echo.build:build_instance",
                    frontend="ninfer_echo.frontend:open_frontend",
                )
        """
        return ()


ARCHITECTURES: Final = Seam("ninfer_architectures", "architecture", ArchitectureEntry)
