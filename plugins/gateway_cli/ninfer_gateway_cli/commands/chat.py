"""`ninfer chat`: a conversation in the terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from ninfer_gateway_cli.conversation import Conversation
from ninfer_gateway_cli.failures import FAILED, reported
from ninfer_gateway_cli.groups import with_groups
from ninfer_gateway_cli.interrupt import Interrupt
from ninfer_gateway_cli.opening import open_engine
from ninfer_gateway_cli.options import AnswerGroup, Draws, EngineGroup, SamplingGroup
from ninfer_gateway_cli.terminal import Terminal

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="--plugin NAME and --no-plugin NAME hold for every command.")
@with_groups
def chat(
    ctx: typer.Context,
    answer: AnswerGroup,
    sampling: SamplingGroup,
    engine: EngineGroup,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A .ninfer file, a Hugging Face directory, or a source such as demo. "
            "Default: $NINFER_MODEL, else demo.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The system message to begin with.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Talk to a model; it remembers the conversation.

    /help lists the commands. Ctrl-C stops an answer and keeps the conversation; Ctrl-D ends it.
    """
    with reported(debug=debug):
        draws = Draws(sampling)
        options = answer.to_options(draws.checked())
        with Interrupt() as interrupt:
            opened = open_engine(ctx.obj, model, engine.to_options(ctx.obj), interrupt)
        with opened:
            options = replace(options, sampling=draws.on(opened.load_summary()))
            conversation = Conversation(opened, options, answer.chat_options(), system)
            if not Terminal(conversation).talk():
                raise typer.Exit(FAILED)
