"""`ninfer inspect`: what a .ninfer file holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ninfer_core.console import DebugOption, reported

if TYPE_CHECKING:
    from ninfer_core.artifact import ArtifactSummary

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def inspect(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .ninfer file.")],
    tensors: Annotated[
        bool, typer.Option("--tensors", help="List every tensor with its error.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: DebugOption = False,
) -> None:
    """Show components, formats, quality and origin of a .ninfer file; reads no weights."""
    with reported(debug=debug, as_json=as_json):
        from ninfer_core.artifact import open_artifact, summarise
        from ninfer_core.conversion import weight_formats

        with open_artifact(file, weight_formats(ctx.obj)) as artifact:
            summary = summarise(artifact)
        if as_json:
            typer.echo(json.dumps(summary.to_json()))
            return
        for line in _lines(summary):
            typer.echo(line)
        for line in _tensors(summary) if tensors else ():
            typer.echo(line)


def _lines(summary: ArtifactSummary) -> Iterator[str]:
    yield f"{summary.name}: {summary.architecture or 'no architecture'}"
    yield f"  artifact   v{summary.version} {summary.artifact_id}"
    yield f"  payload    {_size(sum(summary.files))} in {_files(summary.files)}"
    for part in summary.components:
        target = f" for {part.target}" if part.target else ""
        resources = f", {', '.join(part.resources)}" if part.resources else ""
        yield (
            f"  component  {part.name}{target}: {part.parameters:,} parameters in "
            f"{part.tensors} tensors, {_size(part.bytes)}{resources}"
        )
    for form in summary.formats:
        error = form.max_rms_relative_error
        worst = f", worst rms error {error:.3g}" if error else ""
        yield (
            f"  format     {form.name} ({form.layout}): {form.tensors} tensors, "
            f"{_size(form.bytes)}{worst}"
        )
    yield from _quality(summary)
    origin = summary.provenance
    yield f"  made by    {origin.converter}, recipe {origin.recipe}"
    for source in origin.sources:
        yield f"  from       {source.name} {_size(source.bytes)} sha256 {source.sha256}"


def _quality(summary: ArtifactSummary) -> Iterator[str]:
    quality = summary.quality
    worst = f" ({quality.max_rms_object})" if quality.max_rms_relative_error else ""
    finite = "all finite" if quality.all_finite else "NOT all finite"
    yield f"  quality    {finite}; worst rms error {quality.max_rms_relative_error:.3g}{worst}"


def _tensors(summary: ArtifactSummary) -> Iterator[str]:
    for tensor in summary.tensors:
        shape = "x".join(map(str, tensor.shape))
        yield (
            f"  tensor     {tensor.id} [{shape}] {tensor.format}: "
            f"rms error {tensor.rms_relative_error:.3g}, max {tensor.max_abs_error:.3g}"
        )


def _files(sizes: Sequence[int]) -> str:
    return "1 file" if len(sizes) == 1 else f"{len(sizes)} files"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count:,} bytes"
