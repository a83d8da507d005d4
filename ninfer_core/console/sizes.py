"""Sizes as people type them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from ninfer_core.errors import UsageError

_UNITS: Final = {"": 0, "B": 0, "KIB": 10, "MIB": 20, "GIB": 30, "TIB": 40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)


def byte_size(text: str, flag: str) -> int:
    """Bytes of ``8GiB``, ``1.5 MiB`` or a plain number; units are powers of 1024 in any case.

    Raises UsageError naming ``flag``, also for a part of a byte.
    """
    found = _SIZE.fullmatch(text.strip())
    shift = _UNITS.get(found[2].upper()) if found else None
    size = Decimal(found[1]) * (1 << shift) if found and shift is not None else None
    if size is None or size != int(size):
        raise UsageError(f"{flag} is {text!r}", hint="give a size, such as 8GiB or 512MiB")
    return int(size)
