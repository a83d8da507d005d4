"""The options of ``ninfer`` that hold for every command, taken out before the command sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ninfer_core.errors import UsageError
from ninfer_core.plugins import Selection

_OPTIONS: Final = ("--plugin", "--no-plugin")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """``head`` is the command or a first option, None when nothing was typed; ``rest`` follows."""

    head: str | None
    rest: tuple[str, ...]
    selection: Selection


def parse(argv: Sequence[str]) -> CommandLine:
    """Split ``argv`` into the plug-in selection and the rest.

    ``--plugin NAME`` and ``--no-plugin NAME`` may stand anywhere before a lone ``--``, which stays
    for the command. Raises UsageError when a name is missing.
    """
    named: dict[str, list[str]] = {option: [] for option in _OPTIONS}
    others: list[str] = []
    remaining = iter(argv)
    for word in remaining:
        option, equals, value = word.partition("=")
        if word == "--":
            others += [word, *remaining]
        elif option in named:
            named[option].append(value if equals else next(remaining, ""))
            _refuse_missing(option, named[option][-1])
        else:
            others.append(word)
    selection = Selection.of(named["--plugin"], named["--no-plugin"])
    return CommandLine(
        head=others[0] if others else None, rest=tuple(others[1:]), selection=selection
    )


def _refuse_missing(option: str, name: str) -> None:
    if not name.strip() or name.startswith("-"):
        raise UsageError(
            f"option {option} needs the name of a plug-in", hint="`ninfer plugins` lists them"
        )
