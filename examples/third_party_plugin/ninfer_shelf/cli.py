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
    files = [{"name": path.stem, "path": str(path), "bytes": path.stat().st_size}
             for path in models()]  # fmt: skip
    if as_json:
        typer.echo(json.dumps(files, indent=2))
        return
    for file in files:
        typer.echo(f"{file['bytes'] / 1e6:10.1f} MB  {file['name']}")
