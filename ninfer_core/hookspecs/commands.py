"""Seam: sub-commands of ``ninfer``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ninfer_core.hookspecs.markers import hookspec
from ninfer_core.hookspecs.records import Entry, Seam


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEntry(Entry):
    """A sub-command.

    ``help`` is the line of ``ninfer --help``, shown without importing the command. ``load`` loads
    a ``typer.Typer`` app, or a function that Typer can turn into one; a ``typer.Context``
    parameter gives it the loaded ``PluginHost`` as ``ctx.obj``. Invoking the command names its
    plug-in.
    """

    help: str
    load: str


class CommandSpecs:
    """Hooks for plug-ins that add commands."""

    @hookspec
    def ninfer_commands(self) -> Iterable[CommandEntry]:
        """Offer sub-commands.

        Since: api 1.0.
        Called: once per process, when plug-ins load; ``load`` runs only when invoked.
        Returns: entries; ``name`` is what follows ``ninfer``.
        Threading: main thread.
        Example::

            @hookimpl
            def ninfer_commands():
                yield CommandEntry(name="hello", help="Greet.", load="ninfer_hello.cli:app")
        """
        return ()


COMMANDS: Final = Seam("ninfer_commands", "command", CommandEntry)
