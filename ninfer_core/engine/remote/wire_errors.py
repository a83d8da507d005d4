"""Exceptions on their way between processes, with their type and all their fields."""

from __future__ import annotations

import pickle
import sys
import traceback
from importlib import import_module
from typing import Any

from ninfer_core.errors import NinferError

PackedError = tuple[tuple[tuple[str, str], ...], tuple[Any, ...], dict[str, Any]]
"""The type and its bases from the most special on, as module and qualified name; ``args``; the
attributes."""


def pack_error(error: BaseException) -> PackedError:
    """``error`` in plain values. One that NInfer did not raise on purpose takes its traceback along
    as a note."""
    bases = tuple(
        (kind.__module__, kind.__qualname__)
        for kind in type(error).__mro__
        if issubclass(kind, BaseException)
    )
    fields = {name: _plain(value) for name, value in vars(error).items()}
    if not isinstance(error, NinferError):
        trace = "".join(traceback.format_exception(error)).rstrip()
        fields["__notes__"] = [*fields.get("__notes__", ()), f"In the engine's process:\n{trace}"]
    return bases, tuple(map(_plain, error.args)), fields


def unpack_error(packed: PackedError) -> BaseException:
    """The error again, as the most special of its types that this process has."""
    bases, arguments, fields = packed
    kind = next(found for found in map(_find, bases) if found is not None)
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    vars(error).update(fields)
    return error


def _plain(value: Any) -> Any:
    """``value``, or its text where it cannot leave the process."""
    try:
        pickle.dumps(value, 5)
    except Exception:
        return repr(value)
    return value


def _find(name: tuple[str, str]) -> type[BaseException] | None:
    """The exception type, where its module is loaded or belongs to NInfer or a plug-in of it."""
    module = sys.modules.get(name[0])
    if module is None and name[0].startswith("ninfer_"):
        try:
            module = import_module(name[0])
        except ImportError:
            return None
    found: Any = module
    for part in name[1].split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
