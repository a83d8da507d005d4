"""Choosing one entry for a model or a device; the reason of every refusal is in the error."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core.hookspecs import (
    ARCHITECTURES,
    OP_BACKENDS,
    ArchitectureEntry,
    DeviceFacts,
    OpBackendEntry,
)
from ninfer_core.plugins.errors import PluginConflict, PluginNotFound, PluginRejected
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


def op_backend_for(
    host: PluginHost, device: DeviceFacts, name: str | None = None
) -> OpBackendEntry:
    """The op backend for ``device``: ``name``, or the one of highest priority that accepts it.

    Raises PluginRejected with every refusal; a named backend is never replaced by another.
    """
    if name is not None:
        entries: tuple[OpBackendEntry, ...] = (host.get(OP_BACKENDS, name),)
    else:
        entries = host.entries(OP_BACKENDS)
    refusals = []
    for entry in entries:
        reason = _refusal(entry, device)
        if reason is None:
            return entry
        refusals.append(f"{entry.name}: {reason}")
    raise PluginRejected(
        f"no op backend runs on device {device.kind} ({'; '.join(refusals) or 'none installed'})",
        hint="choose another device with --devices, or install a backend for it",
    )


def _refusal(entry: OpBackendEntry, device: DeviceFacts) -> str | None:
    if device.kind not in entry.device_kinds:
        return f"runs on {', '.join(entry.device_kinds)} only"
    if entry.unavailable:
        return entry.unavailable
    verdict = entry.accepts(device)
    return None if verdict.ok else verdict.reason
