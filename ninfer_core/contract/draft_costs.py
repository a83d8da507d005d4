"""What drafting costs on a device, as measured once at start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCosts:
    """Seconds, each a tuple with an entry for every number of rows in ``rows``, ascending.

    ``plain`` of a round without drafts; ``verify[k]`` of one that verifies k drafts of every row;
    ``draft[k]`` of making k drafts for every row; k from 0 to K. ``drawn`` are those of rounds that
    draw tokens by a law, where they were measured apart from rounds that take the likeliest.
    """

    rows: tuple[int, ...]
    plain: tuple[float, ...]
    verify: tuple[tuple[float, ...], ...]
    draft: tuple[tuple[float, ...], ...]
    drawn: DraftCosts | None = None
