"""Fields beyond those that act: known ones that are refused by name, unknown ones that are said."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from ninfer_core.contract.errors import InvalidRequest, Unsupported

_CLAMPED: Final = " was clamped "
NeutralValues = Mapping[str, tuple[Any, ...]]
"""Known fields that are not served, each with the values that ask for nothing."""


def check_extras(
    extras: Mapping[str, Any] | None,
    *,
    refused: NeutralValues,
    labels: Collection[str] = (),
    prefix: str = "",
    strict: bool = False,
) -> tuple[str, ...]:
    """Warnings about unknown fields. ``labels`` are known and never change an answer.

    Raises Unsupported for a known field that asks for more than is served, and with ``strict``
    InvalidRequest for an unknown one.
    """
    warnings = []
    for name, value in (extras or {}).items():
        field = f"{prefix}{name}"
        if name in refused:
            if value is not None and not _neutral(value, refused[name]):
                raise Unsupported(
                    f"{field} is not supported by this server", param=field, hint="leave it out"
                )
        elif name not in labels:
            if strict:
                raise InvalidRequest(f"unknown field {field!r}", param=field, hint="leave it out")
            warnings.append(f"unknown field {field!r} was ignored")
    return tuple(warnings)


def refuse_warnings(warnings: Collection[str]) -> None:
    """What a strict server does with a warning. Raises InvalidRequest with the first."""
    for warning in warnings:
        raise InvalidRequest(warning)


def refuse_clamped(notes: Iterable[str]) -> None:
    """What a strict server does with the engine's notes. Raises InvalidRequest for a limit that was
    clamped; the others say what is right with such a request."""
    for note in notes:
        if _CLAMPED in note:
            said = note.replace(_CLAMPED, " would be clamped ")
            raise InvalidRequest(said, param=note.split()[0], hint="ask for less")


def notes_of_all(notes: Sequence[str], clamped: Sequence[str] | None) -> Sequence[str]:
    """The engine's ``notes`` to one of several choices, with what is ``clamped`` for any of them in
    place of what is for that one; unchanged for None."""
    if clamped is None:
        return notes
    return (*(note for note in notes if _CLAMPED not in note), *clamped)


def _neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Equal in type, too: 1 is not True."""
    return any(value == wanted and type(value) is type(wanted) for wanted in neutral)
