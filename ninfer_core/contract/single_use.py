"""Values that are consumed exactly once."""

from __future__ import annotations

from ninfer_core.contract.errors import EngineFailure


class SingleUse:
    """Base of plans, permits, launched units, pending batches and previews.

    The owner calls :meth:`consume` where it takes the value; a second take is an engine failure.
    """

    __slots__ = ("_consumed",)

    def __init__(self) -> None:
        self._consumed = False

    @property
    def consumed(self) -> bool:
        return self._consumed

    def consume(self) -> None:
        """Mark as used. Raises :class:`EngineFailure` on the second call."""
        if self._consumed:
            raise EngineFailure(f"{type(self).__name__} was used twice")
        self._consumed = True
