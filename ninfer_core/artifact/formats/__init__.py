"""Weight formats: the seam through which quantised representations join."""

from ninfer_core.artifact.formats.base import (
    Plane,
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

__all__ = [
    "BF16",
    "BUILTIN_FORMATS",
    "CONTIGUOUS",
    "FP32",
    "INT32",
    "FormatRegistry",
    "PlainFormat",
    "Plane",
    "WeightFormat",
    "builtin_registry",
    "row_blocks",
    "row_count",
    "storage_bytes",
]
