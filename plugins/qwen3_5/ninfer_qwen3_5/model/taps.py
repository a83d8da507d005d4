"""Residual rows after some of the layers, kept for a draft backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Taps:
    """Rows [T, n * H] of one forward pass: residuals after the ``layers``, side by side in their
    order. They are copies, since a route may rewrite its stream in place."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers = layers
        self.rows: Tensor | None = None

    def keep(self, layer: int, residual_TH: Tensor) -> None:
        """Take the rows after ``layer`` if they are asked for."""
        for place, wanted in enumerate(self.layers):
            if wanted != layer:
                continue
            rows, size = residual_TH.shape
            if self.rows is None:
                self.rows = residual_TH.new_empty(rows, len(self.layers) * size)
            self.rows[:, place * size : (place + 1) * size].copy_(residual_TH)
