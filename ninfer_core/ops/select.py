"""The one choice of op implementations, made at start and reported with its reasons."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ninfer_core.ops.backend import OpBackend
from ninfer_core.ops.errors import OpError
from ninfer_core.ops.table import OP_NAMES, Ops

if TYPE_CHECKING:
    from ninfer_core.hookspecs.devices import DeviceFacts
    from ninfer_core.hookspecs.ops import OpBackendEntry


@dataclass(frozen=True, slots=True)
class OpChoice:
    """Which backend computes an op, and why that one."""

    op: str
    backend: str
    reason: str


@dataclass(frozen=True, slots=True)
class OpSelection:
    """The table and, in the table's order, the choices behind it."""

    ops: Ops
    choices: tuple[OpChoice, ...]


def select_ops(
    device: DeviceFacts,
    entries: Iterable[OpBackendEntry],
    *,
    backend: str | None = None,
    overrides: Mapping[str, str] | None = None,
) -> OpSelection:
    """Choose one backend for ``device`` and build the table.

    ``backend`` names it; otherwise the highest priority among those that accept the device, then
    the first by name. ``overrides`` gives single ops to another backend by name. Only chosen
    backends are loaded. Raises OpError when no backend fits, a named one does not, an override
    names no op, or a chosen backend lacks an op.
    """
    offered = sorted(entries, key=lambda entry: (-entry.priority, entry.name))
    default = _named(offered, device, backend) if backend else _preferred(offered, device)
    reason = "named on request" if backend else f"first choice for {device.kind}"
    choices = dict.fromkeys(OP_NAMES, (default, reason))
    for op, name in (overrides or {}).items():
        if op not in choices:
            raise OpError(f"there is no op {op!r}", hint=f"ops are {', '.join(OP_NAMES)}")
        choices[op] = (_named(offered, device, name), "named on request for this op")
    backends = {entry.name: load_backend(entry) for entry, _ in choices.values()}
    table: dict[str, Any] = {
        op: _implementation(backends[entry.name], op) for op, (entry, _) in choices.items()
    }
    return OpSelection(
        Ops(**table),
        tuple(OpChoice(op, entry.name, why) for op, (entry, why) in choices.items()),
    )


def load_backend(entry: OpBackendEntry) -> OpBackend:
    """Import the object behind ``entry.load``. Raises OpError when it is not an OpBackend."""
    module, _, attribute = entry.load.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise OpError(f"op backend {entry.name!r} cannot be loaded: {error}") from error
    if not isinstance(loaded, OpBackend):
        raise OpError(f"op backend {entry.name!r}: {entry.load} is not an OpBackend")
    return loaded


def _refusal(entry: OpBackendEntry, device: DeviceFacts) -> str:
    """Why ``entry`` cannot serve ``device``; empty when it can."""
    if entry.unavailable:
        return entry.unavailable
    if device.kind not in entry.device_kinds:
        return f"it runs on {', '.join(entry.device_kinds)}"
    verdict = entry.accepts(device)
    return "" if verdict.ok else verdict.reason or "it refuses the device"


def _preferred(offered: list[OpBackendEntry], device: DeviceFacts) -> OpBackendEntry:
    refusals = {entry.name: _refusal(entry, device) for entry in offered}
    for entry in offered:
        if not refusals[entry.name]:
            return entry
    detail = "; ".join(f"{name}: {why}" for name, why in refusals.items()) or "none is installed"
    raise OpError(f"no op backend serves device {device.kind!r}: {detail}")


def _named(offered: list[OpBackendEntry], device: DeviceFacts, name: str) -> OpBackendEntry:
    for entry in offered:
        if entry.name == name:
            if refusal := _refusal(entry, device):
                raise OpError(f"op backend {name!r} cannot serve {device.kind!r}: {refusal}")
            return entry
    known = ", ".join(entry.name for entry in offered) or "none"
    raise OpError(f"there is no op backend {name!r}", hint=f"installed: {known}")


def _implementation(backend: OpBackend, op: str) -> Callable[..., Any]:
    try:
        return backend.ops[op]
    except KeyError:
        raise OpError(
            f"op backend {backend.name!r} does not implement {op!r}",
            hint="choose another backend for this op",
        ) from None
