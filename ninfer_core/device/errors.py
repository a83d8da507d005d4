"""Errors of the device floor."""

from __future__ import annotations

from typing import Final

from ninfer_core.errors import NinferError

LESS: Final = "free memory, or start with a smaller --max-context or --max-concurrency"
"""The mend of memory that is not there."""


class DeviceError(NinferError):
    """A device cannot be chosen, opened or used as asked."""

    exit_code = 2


class DeviceUnavailable(DeviceError):
    """The device that was asked for does not exist, or cannot be used on this machine."""

    exit_code = 2


class ArenaExhausted(DeviceError):
    """A sub-allocation does not fit; the message has the numbers."""

    exit_code = 1


class DeviceLost(DeviceError):
    """The device failed in a way that ends its use by this process."""

    exit_code = 1


class DeviceTimeout(DeviceError):
    """The device did not finish within a time that is far beyond what the work takes."""

    exit_code = 1
