"""Seam: implementations of the op contracts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ninfer_core.hookspecs.devices import DeviceFacts
from ninfer_core.hookspecs.markers import hookspec
from ninfer_core.hookspecs.records import Entry, Seam, Verdict, always


@dataclass(frozen=True, slots=True, kw_only=True)
class OpBackendEntry(Entry):
    """One set of op implementations.

    ``device_kinds`` are the devices it runs on. ``load`` loads the backend object of
    ``ninfer_core.ops``. ``accepts`` answers for one concrete device, without importing the backend.
    """

    device_kinds: tuple[str, ...]
    load: str
    accepts: Callable[[DeviceFacts], Verdict] = always


class OpSpecs:
    """Hooks for plug-ins that bring kernels."""

    @hookspec
    def ninfer_op_backends(self) -> Iterable[OpBackendEntry]:
        """Offer op backends.

        Since: api 1.0.
        Called: once per process, when plug-ins load; the choice is made once, at engine start.
        Returns: entries; among those that accept a device the highest ``priority`` is chosen.
        Threading: main thread, before any tensor library is imported.
        Example::

            @hookimpl
            def ninfer_op_backends():
                yield OpBackendEntry(
                    name="reference",
                    device_kinds=("cpu",),
                    load="ninfer_core.ops.reference:BACKEND",
                )
        """
        return ()


OP_BACKENDS: Final = Seam("ninfer_op_backends", "op backend", OpBackendEntry)
