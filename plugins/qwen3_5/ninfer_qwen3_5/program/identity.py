"""What was executed up to a frontier, in the terms in which another prompt can be equal to it."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ninfer_core.contract.frontend import PreparedPrompt

if TYPE_CHECKING:
    import numpy.typing as npt

Placed = tuple[int, int, str, tuple[int, int, int], bytes]
"""First placeholder, number of placeholders, kind, grid and digest of a media item."""


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedPrefix:
    """Everything that the state and the keys and values at a frontier depend on.

    ``token_ids`` i32[frontier]; ``positions`` i32[3, frontier], None where all three axes count
    from 0; ``media`` the items that begin before the frontier; ``template`` and ``salt`` as in
    ``PromptIdentity``.
    """

    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32] | None
    media: tuple[Placed, ...]
    template: str
    salt: str | None

    @staticmethod
    def of(prepared: PreparedPrompt, generated: Rows[int], frontier: int) -> ExecutedPrefix:
        """The first ``frontier`` tokens of a prompt and what was generated after it."""
        tokens = prepared.token_ids[:frontier]
        if frontier > prepared.length:
            beyond = np.asarray(generated[: frontier - prepared.length], dtype=np.int32)
            tokens = np.concatenate([tokens, beyond])
        identity = prepared.identity
        return ExecutedPrefix(
            tokens,
            _positions(prepared, frontier),
            _media(prepared, frontier),
            identity.template,
            identity.salt,
        )

    @property
    def frontier(self) -> int:
        return int(self.token_ids.shape[0])

    def begins(self, prepared: PreparedPrompt) -> bool:
        """Whether ``prepared`` begins with exactly this and has at least one token after it."""
        frontier, identity = self.frontier, prepared.identity
        return (
            frontier < prepared.length
            and (self.template, self.salt) == (identity.template, identity.salt)
            and np.array_equal(self.token_ids, prepared.token_ids[:frontier])
            and self.media == _media(prepared, frontier)
            and _same(self.positions, _positions(prepared, frontier))
        )

    def begins_prefix(self, other: ExecutedPrefix) -> bool:
        """Whether ``other`` begins with exactly this, or is the same."""
        frontier = self.frontier
        if frontier > other.frontier:
            return False
        theirs = other.positions
        return (
            (self.template, self.salt) == (other.template, other.salt)
            and np.array_equal(self.token_ids, other.token_ids[:frontier])
            and self.media == tuple(item for item in other.media if item[0] < frontier)
            and _same(self.positions, None if theirs is None else _plain(theirs[:, :frontier]))
        )


def _media(prepared: PreparedPrompt, frontier: int) -> tuple[Placed, ...]:
    return tuple(
        (item.token_start, item.rows, item.kind, item.grid, item.digest)
        for item in prepared.media
        if item.token_start < frontier
    )


def _positions(prepared: PreparedPrompt, frontier: int) -> npt.NDArray[np.int32] | None:
    """Rotary positions of the first tokens: the prompt's own, then what ``rope_delta`` says."""
    own, delta = prepared.positions, prepared.rope_delta
    if own is None and not delta:
        return None
    if own is None:
        own = np.empty((3, 0), np.int32)
    inside = own[:, :frontier]
    line = np.arange(inside.shape[1], frontier, dtype=np.int32) + np.int32(delta)
    return _plain(np.concatenate([inside, np.broadcast_to(line, (3, line.shape[0]))], axis=1))


def _plain(positions: npt.NDArray[np.int32]) -> npt.NDArray[np.int32] | None:
    """None for positions that all count from 0, so that both spellings of them are equal."""
    counting = np.arange(positions.shape[1], dtype=np.int32)
    return None if bool((positions == counting).all()) else positions


def _same(left: npt.NDArray[np.int32] | None, right: npt.NDArray[np.int32] | None) -> bool:
    if left is None or right is None:
        return left is right
    return np.array_equal(left, right)
