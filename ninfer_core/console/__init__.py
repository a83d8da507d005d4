"""What commands share: groups of options, opening an engine, progress, Ctrl-C, failures.

A plug-in's command that opens an engine takes an :class:`EngineGroup`, wraps its work in
:func:`reported` and calls :func:`open_engine` inside an :class:`Interrupt`::

    @app.command()
    @with_groups
    def count(ctx: typer.Context, engine: EngineGroup, model: ModelArgument = None) -> None:
        start = engine.to_options(ctx.obj)
        with (
            reported(),
            Interrupt() as interrupt,
            open_engine(ctx.obj, model, start, interrupt) as opened,
        ):
            typer.echo(opened.count_tokens(PromptInput(text="hello")))
"""

from __future__ import annotations

from ninfer_core.console.engine_group import (
    ENGINE_FLAGS,
    ActivationsOption,
    DeviceOption,
    DraftTokensOption,
    EngineGroup,
    KvDtypeOption,
    ModelArgument,
    PrefillChunkOption,
    SchemaInstructionOption,
    SpecOption,
    check_draft_tokens,
)
from ninfer_core.console.failures import BAD_INPUT, FAILED, DebugOption, reported, say, spelled
from ninfer_core.console.groups import with_groups
from ninfer_core.console.interrupt import Interrupt, Interrupted, leave
from ninfer_core.console.opening import open_engine, open_remote_engine
from ninfer_core.console.progress import Meter, spinner
from ninfer_core.console.start_report import say_start, start_facts

__all__ = [
    "BAD_INPUT",
    "ENGINE_FLAGS",
    "FAILED",
    "ActivationsOption",
    "DebugOption",
    "DeviceOption",
    "DraftTokensOption",
    "EngineGroup",
    "Interrupt",
    "Interrupted",
    "KvDtypeOption",
    "Meter",
    "ModelArgument",
    "PrefillChunkOption",
    "SchemaInstructionOption",
    "SpecOption",
    "check_draft_tokens",
    "leave",
    "open_engine",
    "open_remote_engine",
    "reported",
    "say",
    "say_start",
    "spelled",
    "spinner",
    "start_facts",
    "with_groups",
]
