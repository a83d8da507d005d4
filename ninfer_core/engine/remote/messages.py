"""What the two processes say to each other, besides the events of a round.

The serving process numbers requests and calls; both ends use those numbers. A list is a round:
packed events (``wire_events``) of any number of requests, in the order of their publication.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer_core.contract.engine import Availability, EngineOptions, LoadSummary
from ninfer_core.contract.frontend import PreparedPrompt
from ninfer_core.contract.requests import GenerationOptions
from ninfer_core.engine.remote.wire_errors import PackedError
from ninfer_core.plugins.selection import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First to the child: what to load, with which plug-ins, from which import path.

    ``opener`` names ``(source, options, host) -> InstanceFactory``; ``log_level`` is the least that
    is logged.
    """

    opener: str
    source: str | Path
    options: EngineOptions
    selection: Selection
    path: tuple[str, ...]
    log_level: int


@dataclass(frozen=True, slots=True)
class Submit:
    """``spent`` seconds have passed since the caller asked. Answered with :class:`Accepted`."""

    number: int
    prompt: PreparedPrompt
    options: GenerationOptions
    spent: float


@dataclass(frozen=True, slots=True)
class Cancel:
    number: int


@dataclass(frozen=True, slots=True)
class Release:
    """The consumer has let go; a request that still runs is cancelled."""

    number: int


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method of the engine. Answered with its value."""

    number: int
    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Close:
    """End every request, then the engine and its process."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the child does now, while it starts."""

    text: str


@dataclass(frozen=True, slots=True)
class Logged:
    """A line for the log of the serving process."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Ready:
    summary: LoadSummary


@dataclass(frozen=True, slots=True)
class StartFailed:
    error: PackedError


@dataclass(frozen=True, slots=True)
class State:
    """The engine failed or is closed."""

    availability: Availability


@dataclass(frozen=True, slots=True)
class Accepted:
    """What submit says of a request beyond what the caller knows."""

    request_id: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """To a Submit or Call of that number: a value, or what was raised."""

    number: int
    value: Any = None
    error: PackedError | None = None
