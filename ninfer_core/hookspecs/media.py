"""Seam: media frontends that turn images or video into model input."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from ninfer_core.hookspecs.markers import hookspec
from ninfer_core.hookspecs.records import Entry, Seam


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFrontendEntry(Entry):
    """A media frontend.

    ``kinds`` are the media it decodes ("image", "video"). ``load`` loads the decoder and
    preprocessor; ``encoder`` loads a factory of ``MediaEncoder``, the model's tower.
    """

    LOADERS: ClassVar[tuple[str, ...]] = ("load", "encoder")

    kinds: tuple[str, ...]
    load: str
    encoder: str = ""


class MediaSpecs:
    """Hooks for plug-ins that read media."""

    @hookspec
    def ninfer_media_frontends(self) -> Iterable[MediaFrontendEntry]:
        """Offer media frontends.

        Since: api 1.0.
        Called: once per process, when plug-ins load; active only when its plug-in is named.
        Returns: entries; acquisition of bytes stays with core, a frontend only decodes them.
        Threading: main thread, before any tensor library is imported.
        Example::

            @hookimpl
            def ninfer_media_frontends():
                yield MediaFrontendEntry(
                    name="stills", kinds=("image",), load="ninfer_stills.frontend:open_frontend"
                )
        """
        return ()


MEDIA_FRONTENDS: Final = Seam(
    "ninfer_media_frontends",
    "media frontend",
    MediaFrontendEntry,
    active=True,
    unserved="this version of ninfer-core reads no media yet",
)
