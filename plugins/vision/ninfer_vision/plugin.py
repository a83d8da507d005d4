"""Plug-in `vision`: images and video as model input."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import hookimpl
from ninfer_core.hookspecs import MediaFrontendEntry


@hookimpl
def ninfer_media_frontends() -> Iterable[MediaFrontendEntry]:
    """Offer the image and video frontend."""
    yield MediaFrontendEntry(
        name="vision",
        summary="Images and video through the checkpoint's vision tower",
        kinds=("image", "video"),
        load="ninfer_vision.frontend:open_frontend",
        encoder="ninfer_vision.encoder:open_encoder",
        unavailable="this version of ninfer-vision does not read media yet",
    )
