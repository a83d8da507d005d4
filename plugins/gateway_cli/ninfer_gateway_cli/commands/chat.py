"""`ninfer chat`: a conversation in the terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from ninfer_core.console import (
    FAILED,
    DebugOption,
    EngineGroup,
    Interrupt,
    ModelArgument,
    open_engine,
    reported,
    with_groups,
)
from ninfer_gateway_cli.conversation import Conversation
from ninfer_gateway_cli.options import FLAGS, AnswerGroup, Draws, SamplingGroup
from ninfer_gateway_cli.report import VerboseOption
from ninfer_gateway_cli.terminal import Terminal

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="--plugin NAME and --no-plugin NAME hold for every command.")
@with_groups
def chat(
    ctx: typer.Context,
    answer: AnswerGroup,
    sampling: SamplingGroup,
    engine: EngineGroup,
    model: ModelArgument = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The system message to begin with.")
    ] = None,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
) -> None:
    """Talk to a model; it remembers the conversation.

    /help lists the commands. Ctrl-C stops an answer and keeps the conversation; Ctrl-D ends it.
    """
    with reported(debug=debug, flags=FLAGS):
        draws = Draws(sampling)
        options = answer.to_options(draws.checked())
        with Interrupt() as interrupt:
            opened = open_engine(ctx.obj, model, engine.to_options(ctx.obj), interrupt)
        with opened:
            options = replace(options, sampling=draws.on(opened.load_summary()))
            conversation = Conversation(opened, options, answer.chat_options(), system)
            if not Terminal(conversation, verbose=verbose).talk():
                raise typer.Exit(FAILED)
