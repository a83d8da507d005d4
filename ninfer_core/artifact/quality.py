"""Measure how faithful a stored tensor is to its source, block by block."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ninfer_core.artifact.model import QualityBlock

if TYPE_CHECKING:
    import torch

BLOCK_ELEMENTS = 1 << 20
NO_ZERO_ROWS = 0.0
SOME_ZERO_ROWS = 0.5
"""No sound tensor has more zero rows than half: not even a vocabulary table padded with zeros."""


class QualityMeter:
    """Accumulates the quality of one tensor over blocks of rows [n, width].

    A vector is one row, but has no rows that could be lost: ``vector`` leaves the shares at 0.
    """

    def __init__(self, *, vector: bool = False) -> None:
        self.finite = True
        self.rows = self.zero_rows = self.collapsed_rows = 0
        self._vector = vector
        self._max_abs = self._error_squares = self._source_squares = 0.0

    def add(self, source: torch.Tensor, stored: torch.Tensor | None) -> None:
        """Account for rows of the source and their decoded form (None when bit-equal)."""
        peaks = row_peaks(source if stored is None else stored)
        self.finite = self.finite and bool(peaks.isfinite().all())
        if not self._vector:
            empty = peaks == 0
            self.rows += len(empty)
            self.zero_rows += int(empty.sum())
            if stored is not None:
                self.collapsed_rows += int((empty & (row_peaks(source) != 0)).sum())
        if stored is not None and self.finite:
            self._add_error(source.float(), stored)

    def merge(self, other: QualityMeter) -> None:
        """Account for the rows of another meter as well."""
        self.finite = self.finite and other.finite
        self.rows += other.rows
        self.zero_rows += other.zero_rows
        self.collapsed_rows += other.collapsed_rows
        self._max_abs = max(self._max_abs, other._max_abs)
        self._error_squares += other._error_squares
        self._source_squares += other._source_squares

    def block(self, source_dtype: str, zero_row_limit: float) -> QualityBlock:
        squares = self._source_squares
        return QualityBlock(
            source_dtype=source_dtype,
            finite=self.finite,
            max_abs_error=_rounded(self._max_abs),
            rms_relative_error=_rounded(math.sqrt(self._error_squares / squares))
            if squares
            else 0.0,
            zero_row_share=share(self.zero_rows, self.rows),
            collapsed_row_share=share(self.collapsed_rows, self.rows),
            zero_row_limit=zero_row_limit,
        )

    def _add_error(self, source: torch.Tensor, stored: torch.Tensor) -> None:
        error = stored - source
        self._max_abs = max(self._max_abs, float(error.abs().max()))
        self._error_squares += _squares(error)
        self._source_squares += _squares(source)


def is_finite(values: torch.Tensor) -> bool:
    return bool(row_peaks(values).isfinite().all())


def row_peaks(values: torch.Tensor) -> torch.Tensor:
    """Largest magnitude in each of the rows [n, width]; NaN where a row holds one.

    One pass tells both finite and zero rows.
    """
    return values.abs().amax(dim=1)


def share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _squares(values: torch.Tensor) -> float:
    import torch

    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2


def _rounded(value: float) -> float:
    """Six digits: what differs between machines in the order of a sum is far below them."""
    return float(f"{value:.6g}")
