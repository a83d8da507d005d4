"""The errors of the artifact floor: each names the field at fault and how to mend it."""

from __future__ import annotations

from ninfer_core.errors import NinferError


class ArtifactError(NinferError):
    """An artifact cannot be read, bound, verified or written.

    ``field`` is the place at fault (a directory path such as ``objects[3].shape[0]``, a parameter
    name, or a file name), ``problem`` what is wrong with it and ``hint`` the mend.
    """

    exit_code = 2

    def __init__(self, field: str, problem: str, mend: str) -> None:
        super().__init__(f"{field}: {problem}", hint=mend)
        self.field = field
        self.problem = problem


class ConversionError(ArtifactError):
    """A checkpoint cannot be converted; nothing was left on disk."""
