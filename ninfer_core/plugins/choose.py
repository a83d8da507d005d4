"""Choosing the architecture that runs a checkpoint, and the op backend that serves a device."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core.hookspecs import (
    ARCHITECTURES,
    OP_BACKENDS,
    ArchitectureEntry,
    DeviceFacts,
    OpBackendEntry,
)
from ninfer_core.plugins.errors import PluginConflict, PluginNotFound
from ninfer_core.plugins.host import PluginHost


def architecture_for(host: PluginHost, class_names: Iterable[str]) -> ArchitectureEntry:
    """The entry that runs a checkpoint whose config names ``class_names``.

    Raises PluginNotFound (naming what is installed), PluginConflict or PluginUnavailable.
    """
    wanted = tuple(class_names)
    entries = host.entries(ARCHITECTURES)
    matches = [e for e in entries if set(wanted) & set(e.architectures)]
    if not matches:
        known = sorted(name for e in entries for name in e.architectures)
        raise PluginNotFound(
            f"no installed plug-in runs the architecture {', '.join(wanted) or '(none named)'}",
            hint=f"install the plug-in of that model; installed: {', '.join(known) or 'none'}",
        )
    if len(matches) > 1:
        titles = " and ".join(host.provider(ARCHITECTURES, e.name).title for e in matches)
        raise PluginConflict(
            f"architecture {', '.join(wanted)} is offered by {titles}",
            hint="leave one out with `--no-plugin NAME`",
        )
    return host.get(ARCHITECTURES, matches[0].name)


def op_backend_for(host: PluginHost, device: DeviceFacts) -> tuple[OpBackendEntry, str]:
    """The backend with the highest priority that accepts ``device``, and why it was chosen.

    Raises PluginNotFound with every backend's reason when none does.
    """
    refusals: list[str] = []
    for entry in host.entries(OP_BACKENDS):
        refusal = _refusal(entry, device)
        if not refusal:
            return entry, "; ".join([f"first choice for {device.kind}", *refusals])
        refusals.append(f"{entry.name}: {refusal}")
    raise PluginNotFound(
        f"no op backend serves device {device.kind!r}: {'; '.join(refusals) or 'none installed'}",
        hint="install the plug-in with kernels for this device",
    )


def _refusal(entry: OpBackendEntry, device: DeviceFacts) -> str:
    """Why ``entry`` cannot serve ``device``; empty when it can."""
    if entry.unavailable:
        return entry.unavailable
    if device.kind not in entry.device_kinds:
        return f"it runs on {', '.join(entry.device_kinds)}"
    verdict = entry.accepts(device)
    return "" if verdict.ok else verdict.reason or "it refuses the device"
