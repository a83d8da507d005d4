"""The command ``ninfer shelf``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ninfer_shelf.folder import models


def shelf(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """List the models on the shelf, newest first, with their size."""
    found = [(path, path.stat().st_size) for path in models()]
    if as_json:
        rows = [{"name": path.stem, "path": str(path), "bytes": size} for path, size in found]
        typer.echo(json.dumps(rows, indent=2))
        return
    for path, size in found:
        typer.echo(f"{size / 1e6:10.1f} MB  {path.stem}")
