"""Read-only maps of files."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from ninfer_core.artifact.errors import ArtifactError


def map_file(path: Path, mend: str) -> memoryview:
    """All bytes of a regular, non-empty file; raises `ArtifactError` with ``mend`` otherwise."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
            raise OSError(None, "not a regular file")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise OSError(None, "the file is empty")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArtifactError(str(path), f"cannot be opened ({reason})", mend) from error
