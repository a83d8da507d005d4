"""Plug-in `gateway_cli`: the commands a person types."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import hookimpl
from ninfer_core.hookspecs import CommandEntry

_COMMANDS = {
    "run": "Answer one prompt and print the text.",
    "chat": "Talk to a model in the terminal.",
    "convert": "Convert a Hugging Face directory to a .ninfer file.",
    "inspect": "Show what a .ninfer file holds.",
    "verify": "Check every byte of a .ninfer file.",
}


@hookimpl
def ninfer_commands() -> Iterable[CommandEntry]:
    """Offer the commands of the terminal."""
    for name, line in _COMMANDS.items():
        yield CommandEntry(name=name, help=line, load=f"ninfer_gateway_cli.commands:{name}_app")
