"""What ``ninfer`` prints about itself: help, version, and the plug-ins as a table or JSON."""
# ruff: noqa: T201

from __future__ import annotations

import sys
from typing import Final

from ninfer_core.hookspecs import COMMANDS
from ninfer_core.plugins import PluginHost, PluginReport
from ninfer_core.version import API, __version__

_HELP: Final = """\
Usage: ninfer [OPTIONS] COMMAND [ARGS]...

Options:
  --plugin NAME          Name a plug-in that must act; may be repeated.
  --no-plugin NAME       Leave an installed plug-in out; may be repeated.
  --version              Show the version and the plug-ins.
  --install-completion   Install completion for the current shell.
  --show-completion      Show that completion, to copy or adapt it.
  --help                 Show this; `ninfer COMMAND --help` explains a command.

Commands:"""


def print_help(host: PluginHost) -> None:
    """Print the options and every command with its line; no command is imported."""
    print(_HELP)
    entries = sorted(host.entries(COMMANDS), key=lambda entry: entry.name)
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        print(f"  {entry.name:{width}}  {entry.unavailable or entry.help}")


def print_version(host: PluginHost) -> None:
    """Print core's version, then each plug-in with its state and place."""
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"ninfer {__version__} (plug-in API {API[0]}.{API[1]}, Python {python})")
    for report in host.reports:
        print(f"  {report.name} {report.state} {report.dist} {report.version} {report.location}")


def print_plugins(host: PluginHost, *, as_json: bool) -> None:
    """Print every plug-in found, with its state, reason and mend."""
    if as_json:
        _print_json(host)
        return
    rows = [("NAME", "STATE", "DISTRIBUTION")]
    rows += [(r.name, r.state, f"{r.dist} {r.version}") for r in host.reports]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    notes = [()] + [_notes(report) for report in host.reports]
    for row, lines in zip(rows, notes, strict=True):
        print(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}")
        for line in lines:
            print(f"{'':{widths[0]}}  {line}")


def _notes(report: PluginReport) -> tuple[str, ...]:
    trouble = "; ".join(part for part in (report.reason, report.mend) if part)
    lines = (_provided(report.provides), trouble or report.unavailable)
    return tuple(line for line in lines if line)


def _provided(provides: tuple[str, ...]) -> str:
    """``("command run", "command chat", "device cpu")`` as "command run, chat; device cpu"."""
    by_noun: dict[str, list[str]] = {}
    for title in provides:
        noun, _, name = title.rpartition(" ")
        by_noun.setdefault(noun, []).append(name)
    return "; ".join(f"{noun} {', '.join(names)}" for noun, names in by_noun.items())


def _print_json(host: PluginHost) -> None:
    import json
    from dataclasses import asdict

    plugins = [asdict(report) for report in host.reports]
    print(json.dumps({"core": __version__, "api": list(API), "plugins": plugins}, indent=2))
