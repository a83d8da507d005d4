"""`ninfer convert`: a Hugging Face checkpoint becomes a .ninfer file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ninfer_core.console import DebugOption, Meter, reported, say

if TYPE_CHECKING:
    from ninfer_core.artifact.convert import ConversionReport

_WEIGHTS = "How matrices are stored: bf16, fp32, fp8_e4m3fn_row_bf16 (fp8) or q4_g64_fp16 (q4)."
_HEAD = "How embedding and head are stored; default: as the matrices, fp8 with q4."
_FLAGS = {"recipe:": "--weights:", "head:": "--head:", "components:": "--components:"}
"""How an error begins that names an option by what the converter calls its value."""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def convert(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A Hugging Face directory.")],
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="The .ninfer file to write.")
    ],
    recipe: Annotated[str, typer.Option("--weights", metavar="FORMAT", help=_WEIGHTS)] = "bf16",
    head: Annotated[str | None, typer.Option(metavar="FORMAT", help=_HEAD)] = None,
    components: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Components to carry; default: all that there are."),
    ] = None,
    drafter: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A drafter's directory to add; again for another kind."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="N", help="Public name; default: the directory's.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT when it exists.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as one JSON object.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Convert a Hugging Face directory to a .ninfer file; a failure leaves no file behind."""
    with reported(debug=debug, as_json=as_json, flags=_FLAGS):
        from ninfer_core.artifact.convert import ConvertOptions
        from ninfer_core.artifact.convert import convert as convert_checkpoint
        from ninfer_core.conversion import converters, draft_converters, weight_formats

        options = ConvertOptions(
            recipe=recipe,
            head=head,
            components=None if components is None else _names(components),
            drafters=drafter or (),
            name=name,
            overwrite=force,
        )
        with Meter() as meter:
            report = convert_checkpoint(
                source,
                out,
                architectures=converters(ctx.obj),
                drafters=draft_converters(ctx.obj),
                options=options,
                progress=meter.conversion,
                formats=weight_formats(ctx.obj),
            )
        for note in report.notes:
            say("note", note)
        if as_json:
            typer.echo(json.dumps(report.to_json()))
            return
        typer.echo(_line(report))


def _line(report: ConversionReport) -> str:
    parts = f" in {report.files} files" if report.files > 1 else ""
    return (
        f"{report.path}: {report.name}, {report.architecture}, recipe {report.recipe}, "
        f"{', '.join(report.components)}; {report.tensors} tensors, "
        f"{report.bytes / 1e6:.1f} MB{parts}, worst rms error {report.max_rms_relative_error:.3g}"
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
