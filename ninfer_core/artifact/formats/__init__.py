"""Weight formats: the seam through which quantised representations join."""

from ninfer_core.artifact.formats.base import (
    Plane,
    StrictFormat,
    WeightFormat,
    row_blocks,
    row_count,
    storage_bytes,
)
from ninfer_core.artifact.formats.plain import BF16, CONTIGUOUS, FP32, INT32, PlainFormat
from ninfer_core.artifact.formats.registry import (
    BUILTIN_FORMATS,
    FormatRegistry,
    builtin_registry,
)
from ninfer_core.artifact.formats.row_groups import Q4_GROUPS, ROW_SPLIT, GroupedQ4
from ninfer_core.artifact.formats.row_scale import FP8_ROW, ROW_SCALE, RowScaledFp8

__all__ = [
    "BF16",
    "BUILTIN_FORMATS",
    "CONTIGUOUS",
    "FP8_ROW",
    "FP32",
    "INT32",
    "Q4_GROUPS",
    "ROW_SCALE",
    "ROW_SPLIT",
    "FormatRegistry",
    "GroupedQ4",
    "PlainFormat",
    "Plane",
    "RowScaledFp8",
    "StrictFormat",
    "WeightFormat",
    "builtin_registry",
    "row_blocks",
    "row_count",
    "storage_bytes",
]
