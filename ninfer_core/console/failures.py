"""How commands fail: one line on stderr, an exit code, and no traceback unless asked for."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NoReturn

import typer

from ninfer_core.console.interrupt import Interrupted, leave
from ninfer_core.contract.errors import RequestError
from ninfer_core.errors import NinferError

FAILED: Final = 1
BAD_INPUT: Final = 2

DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def say(kind: str, text: str) -> None:
    """One line on stderr."""
    print(f"ninfer: {kind}: {' '.join(text.split())}", file=sys.stderr, flush=True)  # noqa: T201


@contextlib.contextmanager
def reported(
    *, debug: bool = False, as_json: bool = False, flags: Mapping[str, str] | None = None
) -> Iterator[None]:
    """End the command with its exit code when the block raises.

    With ``as_json`` stdout still gets one object: ``{"error": {message, code, param}}``. ``flags``
    maps field names of the contract to the command's options, for messages.
    """
    try:
        yield
    except (BrokenPipeError, typer.Exit):
        raise
    except (Interrupted, KeyboardInterrupt):
        _print_error("interrupted", {"code": "cancelled", "param": None}, as_json=as_json)
        leave()
    except (NinferError, OSError) as error:
        _report(error, spelled(str(error), flags or {}), debug=debug, as_json=as_json)
    except Exception as error:
        message = f"internal error: {type(error).__name__}: {error} (--debug shows where)"
        _report(error, message, debug=debug, as_json=as_json)


def spelled(message: str, flags: Mapping[str, str]) -> str:
    """``message`` with the command's options in place of the contract's field names."""
    for field, flag in flags.items():
        message = message.replace(field, flag)
    return message


def _report(error: Exception, message: str, *, debug: bool, as_json: bool) -> NoReturn:
    if debug or os.environ.get("NINFER_DEBUG"):
        traceback.print_exception(error)
    code = error.code if isinstance(error, RequestError) else type(error).__name__
    facts = {"code": code, "param": getattr(error, "param", None)}
    _print_error(message, facts, as_json=as_json)
    raise typer.Exit(error.exit_code if isinstance(error, NinferError) else FAILED) from None


def _print_error(message: str, facts: dict[str, Any], *, as_json: bool) -> None:
    say("error", message)
    if as_json:
        print(json.dumps({"error": {"message": message, **facts}}), flush=True)  # noqa: T201
