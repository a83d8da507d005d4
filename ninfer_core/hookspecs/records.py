"""What every registration record shares: a name, a verdict type, and the seam it belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to "can you": ``ok``, and when it is not, a ``reason`` fit to show a user."""

    ok: bool
    reason: str = ""

    @classmethod
    def yes(cls) -> Verdict:
        """Accept."""
        return cls(True)

    @classmethod
    def no(cls, reason: str) -> Verdict:
        """Refuse with ``reason``, a clause such as "the checkpoint has no MTP layer"."""
        return cls(False, reason)


def always(_facts: object) -> Verdict:
    """The ``accepts`` of a record that works with everything."""
    return Verdict.yes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The part common to every record that a registration hook returns.

    ``name`` is lower case with ``_`` or ``-`` between words, unique within its seam.
    ``requirements`` are distribution requirements ("xgrammar>=0.2") that loading needs beyond the
    plug-in's own install; they are checked from metadata before a loader runs.
    ``unavailable`` says why this version cannot run the entry yet; such an entry is listed and
    refused, never loaded. Entries sort by descending ``priority``, then by name.

    Raises ValueError when the name is malformed.
    """

    LOADERS: ClassVar[tuple[str, ...]] = ("load",)
    """The fields that hold loader strings ``"module:attribute"``; "" in one means "not offered"."""

    name: str
    summary: str = ""
    requirements: tuple[str, ...] = ()
    unavailable: str = ""
    priority: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{type(self).__name__}.name {self.name!r} must be lower case letters and digits, "
                f"joined by '_' or '-', and start with a letter"
            )


E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, slots=True)
class Seam(Generic[E]):
    """One kind of replaceable part: the hook that collects it and the record the hook returns.

    ``noun`` is how messages call one entry ("weight format"). An ``active`` seam widens what a
    process does (drafts, decodes media): its entries act only when their plug-in is named.
    ``unserved`` says why this version of core calls none of its entries: they are listed, and
    refused when asked for, as if each said so in ``Entry.unavailable``.
    """

    hook: str
    noun: str
    record: type[E]
    active: bool = False
    unserved: str = ""
