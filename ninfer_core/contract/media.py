"""Images and videos on their way from a prompt to embedding rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ninfer_core.contract.single_use import SingleUse

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MediaItem:
    """One preprocessed item. ``patches`` f32[m, 3*T*16*16] in merge-block order, ``grid`` (t, h, w)
    in patches, ``token_start`` the first placeholder and ``rows`` the number of placeholders."""

    kind: Literal["image", "video"]
    digest: bytes
    grid: tuple[int, int, int]
    token_start: int
    rows: int
    patches: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Overlay:
    """Rows of a unit's input that come from a hand-off instead of the embedding table."""

    unit_rows: range
    handoff_rows: range


class Handoff(SingleUse):
    """Encoded rows [m, H] of one item; owned by the sequence until its last consumer commits."""

    __slots__ = ("digest", "rows")

    def __init__(self, digest: bytes, rows: Any) -> None:
        super().__init__()
        self.digest = digest
        self.rows = rows


class MediaEncoder(Protocol):
    """Turns items into hand-offs on the device; allocates nothing after :meth:`workspace`."""

    def bind(self, parameters: Any) -> None: ...

    def workspace(self, limits: Any) -> int:
        """Bytes of device scratch needed for the largest admitted item."""
        ...

    def encode(self, items: Sequence[MediaItem]) -> Sequence[Handoff]: ...


class MediaFrontend(Protocol):
    """Decodes and preprocesses acquired bytes on the host."""

    def prepare(self, data: bytes, kind: Literal["image", "video"], options: Any) -> MediaItem:
        """Raises MediaError naming the part and the limit it broke."""
        ...
