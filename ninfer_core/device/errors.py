"""Errors of the device floor."""

from __future__ import annotations

from ninfer_core.errors import NinferError


class DeviceError(NinferError):
    """A device cannot be chosen, opened or used as asked."""


class ArenaExhausted(DeviceError):
    """A sub-allocation does not fit; the message has the numbers."""
