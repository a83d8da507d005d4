"""Registered commands as Typer commands; the only part of ``ninfer`` that imports Typer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from typer.completion import get_completion_inspect_parameters
from typer.core import TyperCommand, TyperGroup

from ninfer_core.cli.listing import print_plugins
from ninfer_core.hookspecs import COMMANDS
from ninfer_core.plugins import PluginHost, PluginLoadError

_COMPLETION: Final = frozenset({"install_completion", "show_completion"})


def invoke(host: PluginHost, name: str, args: Sequence[str]) -> int:
    """Import command ``name``, name its plug-in, and run it; the value is the exit code."""
    command = load_command(host, name)
    host.activate(host.provider(COMMANDS, name).name)
    return _run(command, args, f"ninfer {name}", host)


def load_command(host: PluginHost, name: str) -> Any:
    """The Typer command of entry ``name``. Raises PluginError."""
    loaded = host.load(COMMANDS, name)
    app = loaded if isinstance(loaded, typer.Typer) else _app_of(loaded, host, name)
    command = typer.main.get_command(app)
    command.name = name
    command.params = [p for p in command.params if p.name not in _COMPLETION]
    return command


def complete(host: PluginHost) -> int:
    """Answer the completion request of a shell.

    The group has no options of its own, because each would make Typer import pydantic.
    """
    get_completion_inspect_parameters()  # for its effect: it makes the shells known
    group = RootGroup(name="ninfer", add_help_option=False, rich_markup_mode=None)
    group.host = host
    return _run(group, [], "ninfer", host)


def completion_script(args: Sequence[str]) -> int:
    """Install or show the completion script of a shell."""
    root = typer.Typer(rich_markup_mode=None)
    root.callback()(_no_options)
    return _run(typer.main.get_command(root), args, "ninfer", None)


def plugins_command(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the installed plug-ins: state, distribution, what each provides and what is wrong."""
    print_plugins(ctx.obj, as_json=as_json)


class RootGroup(TyperGroup):
    """The commands by name for completion; only the one being completed is imported."""

    host: PluginHost

    def list_commands(self, ctx: Any) -> list[str]:
        """The registered names, sorted."""
        return sorted(entry.name for entry in self.host.entries(COMMANDS))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in with the entry's help line."""
        entries = {entry.name: entry for entry in self.host.entries(COMMANDS)}
        entry = entries.get(cmd_name)
        return entry and TyperCommand(cmd_name, help=entry.help, rich_markup_mode=None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The real command that ``args`` starts with."""
        return args[0], load_command(self.host, args[0]), args[1:]


def _no_options() -> None:
    """NInfer."""


def _app_of(loaded: Any, host: PluginHost, name: str) -> typer.Typer:
    if not callable(loaded):
        raise PluginLoadError(
            f"command {name} of {host.provider(COMMANDS, name).title} is neither a typer.Typer "
            f"nor a function: {loaded!r}",
            hint=f"leave the plug-in out with `--no-plugin {host.provider(COMMANDS, name).name}`",
        )
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name)(loaded)
    return app


def _run(command: Any, args: Sequence[str], prog_name: str, host: PluginHost | None) -> int:
    try:
        command.main(list(args), prog_name=prog_name, obj=host)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
