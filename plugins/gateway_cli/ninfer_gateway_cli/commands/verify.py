"""`ninfer verify`: is a .ninfer file whole and sound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ninfer_core.console import BAD_INPUT, DebugOption, Meter, reported, say

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def verify(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .ninfer file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: DebugOption = False,
) -> None:
    """Check every byte of a .ninfer file, its hashes and its values; exit code 2 when unsound."""
    with reported(debug=debug, as_json=as_json):
        from ninfer_core.artifact import open_artifact, summarise
        from ninfer_core.artifact import verify as verify_artifact
        from ninfer_core.conversion import weight_formats

        with open_artifact(file, weight_formats(ctx.obj)) as artifact, Meter() as meter:
            worst = summarise(artifact).quality.max_rms_relative_error
            report = verify_artifact(
                artifact, progress=lambda done, total: meter.update("checking", done, total)
            )
        for problem in report.problems:
            say("error", f"{problem.object} {problem.message}")
        for name in report.unchecked:
            say("warning", f"{name}: values not checked, its format is not installed")
        if as_json:
            typer.echo(json.dumps(report.to_json()))
        elif report.ok:
            size = report.bytes / 1e6
            typer.echo(
                f"{file}: ok, {report.objects} objects, {size:.1f} MB, "
                f"worst rms error {worst:.3g}, {report.artifact_id}"
            )
        if not report.ok:
            raise typer.Exit(BAD_INPUT)
