"""What this plug-in offers: a command and a model source."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import hookimpl
from ninfer_core.hookspecs import CommandEntry, ModelSourceEntry


@hookimpl
def ninfer_commands() -> Iterable[CommandEntry]:
    """Offer ``ninfer shelf``."""
    yield CommandEntry(
        name="shelf", help="List the models on the shelf.", load="ninfer_shelf.cli:shelf"
    )


@hookimpl
def ninfer_model_sources() -> Iterable[ModelSourceEntry]:
    """Offer ``newest`` as a MODEL."""
    yield ModelSourceEntry(
        name="newest",
        summary="The newest .ninfer file on the shelf",
        resolve="ninfer_shelf.folder:newest",
    )
