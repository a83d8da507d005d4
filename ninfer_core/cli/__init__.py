"""The command ``ninfer``: its own options, and the commands that plug-ins register.

Help, ``--version`` and ``plugins`` are answered before Typer is imported; every other command is
imported when it is invoked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ninfer_core.cli.listing import print_help, print_plugins, print_version
from ninfer_core.cli.options import CommandLine, parse
from ninfer_core.errors import NinferError, UsageError
from ninfer_core.plugins import PluginHost, load_plugins

COMPLETE_VARIABLE = "_NINFER_COMPLETE"
_COMPLETION_OPTIONS = ("--install-completion", "--show-completion")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ninfer`` with ``argv`` (default: the process arguments); the value is the exit code.

    An expected error is one line on stderr and its own ``exit_code``, Ctrl-C is 130.
    ``NINFER_DEBUG=1`` shows the traceback.
    """
    _open_closed_streams()
    try:
        return _dispatch(parse(sys.argv[1:] if argv is None else argv))
    except NinferError as error:
        if os.environ.get("NINFER_DEBUG"):
            raise
        _say("error", str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of a pipe went away; keep the interpreter from flushing into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _open_closed_streams() -> None:
    """Python leaves None for a stream that the shell closed, and nothing could write to it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _dispatch(line: CommandLine) -> int:
    if COMPLETE_VARIABLE in os.environ:
        return _complete(line)
    if line.head in _COMPLETION_OPTIONS:
        return _completion_script(line)
    if line.head == "plugins" and set(line.rest) <= {"--json"}:
        return _plugins(line)
    host = load_plugins(line.selection, warn=lambda text: _say("warning", text))
    if line.head in (None, "--help", "-h"):
        print_help(host)
        return 0
    if line.head == "--version":
        print_version(host)
        return 0
    return _command(line, host)


def _plugins(line: CommandLine) -> int:
    host = load_plugins(line.selection, check=False, warn=_silent)
    print_plugins(host, as_json="--json" in line.rest)
    host.check()
    return 0


def _command(line: CommandLine, host: PluginHost) -> int:
    if line.head is None or line.head.startswith("-"):
        raise UsageError(f"no such option {line.head!r}", hint="see `ninfer --help`")
    from ninfer_core.cli.commands import invoke

    return invoke(host, line.head, line.rest)


def _complete(line: CommandLine) -> int:
    from ninfer_core.cli.commands import complete

    return complete(load_plugins(line.selection, check=False, warn=_silent))


def _completion_script(line: CommandLine) -> int:
    from ninfer_core.cli.commands import completion_script

    return completion_script([str(line.head), *line.rest])


def _say(kind: str, text: str) -> None:
    print(f"ninfer: {kind}: {text}", file=sys.stderr)  # noqa: T201


def _silent(_text: str) -> None:
    return
