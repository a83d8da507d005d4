"""The shelf itself: a folder of ``.ninfer`` files."""

from __future__ import annotations

import os
from pathlib import Path

from ninfer_core import NinferError

VARIABLE = "NINFER_SHELF"


def location() -> Path:
    """``$NINFER_SHELF``, else ``~/.ninfer/shelf``."""
    return Path(os.environ.get(VARIABLE) or "~/.ninfer/shelf").expanduser()


def models() -> list[Path]:
    """The files on the shelf, newest first. Raises NinferError when the folder is missing."""
    folder = location()
    if not folder.is_dir():
        raise NinferError(
            f"the shelf {folder} is not a folder", hint=f"create it, or set {VARIABLE} to another"
        )
    files = [path for path in folder.glob("*.ninfer") if path.is_file()]
    return sorted(files, key=lambda path: (-path.stat().st_mtime_ns, path.name))


def newest() -> Path:
    """The file that was written last. Raises NinferError when the shelf is empty."""
    found = models()
    if not found:
        raise NinferError(
            f"the shelf {location()} holds no .ninfer file",
            hint="put one there with `ninfer convert SRC -o FILE`",
        )
    return found[0]
