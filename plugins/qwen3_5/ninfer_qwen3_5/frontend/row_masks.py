"""The constraint of a row as the Program asks for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ninfer_core.contract.frontend import ColumnState
from ninfer_core.contract.grammar import Matcher

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_log = logging.getLogger(__name__)


class RowMasks:
    """See the contract's ``MaskProvider``. Speaks of the committed output whenever it is asked:
    ``matcher`` gives its place in the constraint, None after the end. Raises nothing: a fault ends
    its row alone."""

    def __init__(self, matcher: Callable[[], Matcher | None]) -> None:
        self._matcher = matcher

    def fill(self, drafts: Sequence[int], out: npt.NDArray[np.uint32]) -> tuple[ColumnState, ...]:
        matcher = self._matcher()
        if matcher is None:
            return (ColumnState.UNCONSTRAINED,) * (len(drafts) + 1)
        try:
            return matcher.fill(drafts, out)
        except Exception:
            _log.exception("a token mask could not be filled; its row ends")
            return (ColumnState.DEAD_END, *(ColumnState.UNREACHABLE for _ in drafts))
