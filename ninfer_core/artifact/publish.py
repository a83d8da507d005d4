"""Give finished temporary files their names: all of them, the entry file last, or none."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ninfer_core.artifact.errors import ArtifactError


def refuse_existing(targets: Sequence[Path]) -> None:
    """Raise `ArtifactError` when one of ``targets`` exists."""
    for target in targets:
        if target.exists() or target.is_symlink():
            raise _exists(target)


def publish_files(temporary: Sequence[Path], targets: Sequence[Path], *, overwrite: bool) -> None:
    """Rename ``temporary[i]`` to ``targets[i]``; index 0 is the entry file and comes last.

    Without ``overwrite`` an existing target raises `ArtifactError`, and what this call had
    published before is withdrawn. The renames are on disk on return.
    """
    published: list[Path] = []
    try:
        for source, target in reversed(list(zip(temporary, targets, strict=True))):
            if overwrite:
                os.replace(source, target)
            else:
                _link(source, target)
                published.append(target)
    except BaseException:
        for target in published:
            target.unlink(missing_ok=True)
        raise
    if overwrite:
        _remove_stale_parts(targets)
    _sync_directory(targets[0].parent)


def _link(source: Path, target: Path) -> None:
    """Rename without replacing; a file system without hard links gets a check and a rename."""
    try:
        os.link(source, target)
    except FileExistsError as error:
        raise _exists(target) from error
    except OSError:
        refuse_existing([target])
        os.rename(source, target)
    else:
        source.unlink()


def _remove_stale_parts(targets: Sequence[Path]) -> None:
    entry = targets[0]
    part_name = re.compile(re.escape(entry.name) + r"\.part-\d{4}")
    for path in entry.parent.iterdir():
        if part_name.fullmatch(path.name) and path not in targets:
            path.unlink()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exists(target: Path) -> ArtifactError:
    return ArtifactError(
        str(target), "already exists", "choose another output path or allow overwriting"
    )
