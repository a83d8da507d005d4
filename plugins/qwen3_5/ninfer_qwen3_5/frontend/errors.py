"""The error of the text side's start."""

from __future__ import annotations

from ninfer_core.errors import NinferError


class ResourceError(NinferError):
    """A text resource of the artifact, or what was given in its place, cannot be used."""

    exit_code = 2
