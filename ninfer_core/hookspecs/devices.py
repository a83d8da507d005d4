"""Seam: devices that hold weights and run programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from ninfer_core.hookspecs.markers import hookspec
from ninfer_core.hookspecs.records import Entry, Seam


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What an ``accepts`` may ask of a device before anything is loaded on it.

    ``compute_capability`` is ``(major, minor)`` on CUDA and None elsewhere; memory is in bytes.
    """

    kind: str
    model: str = ""
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEntry(Entry):
    """A device kind.

    ``open`` loads ``(index: int) -> Device``. ``probe`` loads ``() -> Verdict``, asked before
    ``open``; "" means that the device is always there.
    """

    LOADERS: ClassVar[tuple[str, ...]] = ("open", "probe")

    open: str
    probe: str = ""


class DeviceSpecs:
    """Hooks for plug-ins that bring a device."""

    @hookspec
    def ninfer_devices(self) -> Iterable[DeviceEntry]:
        """Offer devices.

        Since: api 1.0.
        Called: once per process, when plug-ins load.
        Returns: entries; ``name`` is the kind that ``--device`` takes ("cpu", "cuda").
        Threading: main thread, before any device library is imported.
        Example::

            @hookimpl
            def ninfer_devices():
                yield DeviceEntry(name="cpu", open="ninfer_core.device.cpu:open_device")
        """
        return ()


DEVICES: Final = Seam("ninfer_devices", "device", DeviceEntry)
