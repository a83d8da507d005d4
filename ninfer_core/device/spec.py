"""What a user writes for a device, and which installed device that means."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer_core.device.errors import DeviceUnavailable

if TYPE_CHECKING:
    from ninfer_core.hookspecs.records import Verdict

AUTO = "auto"
_FORM = re.compile(r"([a-z][a-z0-9_]*)(?::([0-9]{1,4}))?")


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device kind and which one of it."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind in (AUTO, "cpu") else f"{self.kind}:{self.index}"


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The device that a spec came to mean, and why."""

    spec: DeviceSpec
    reason: str


def parse_device(text: str) -> DeviceSpec:
    """Read ``auto``, ``cpu``, ``cuda`` (the first one) or ``cuda:N``. Raises DeviceUnavailable."""
    match = _FORM.fullmatch(text.strip().lower())
    if match is None:
        raise DeviceUnavailable(
            f"device {text!r} is not understood", hint="write auto, cpu, cuda or cuda:N"
        )
    kind, index = match[1], int(match[2] or 0)
    if kind in (AUTO, "cpu") and match[2] is not None and index:
        raise DeviceUnavailable(f"device {text!r}: there is only one {kind}", hint=f"write {kind}")
    return DeviceSpec(kind, index)


def choose_device(spec: DeviceSpec, offered: Mapping[str, Callable[[], Verdict]]) -> DeviceChoice:
    """Settle ``spec`` among the installed kinds.

    ``offered`` maps each kind to its probe, in order of preference. ``auto`` takes the first kind
    whose probe agrees and says what the others lacked; a named kind is taken or refused, never
    replaced. Raises DeviceUnavailable.
    """
    if spec.kind == AUTO:
        return _first_usable(offered)
    if spec.kind not in offered:
        installed = ", ".join(offered) or "none"
        raise DeviceUnavailable(
            f"device {spec}: the {spec.kind.upper()} device is not provided by the installed "
            f"plug-ins",
            hint=f"installed: {installed}",
        )
    verdict = offered[spec.kind]()
    if not verdict.ok:
        raise DeviceUnavailable(f"device {spec} cannot be used: {verdict.reason}")
    return DeviceChoice(spec, "named on request")


def _first_usable(offered: Mapping[str, Callable[[], Verdict]]) -> DeviceChoice:
    refusals: list[str] = []
    for kind, probe in offered.items():
        verdict = probe()
        if verdict.ok:
            reason = "; ".join(refusals) or "first choice"
            return DeviceChoice(DeviceSpec(kind), reason)
        refusals.append(f"{kind}: {verdict.reason}")
    raise DeviceUnavailable(f"no device can be used: {'; '.join(refusals) or 'none is installed'}")
