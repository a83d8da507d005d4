"""Errors of the op floor."""

from __future__ import annotations

from ninfer_core.errors import NinferError


class OpError(NinferError):
    """An op, its backend or its operands do not fit together."""
