"""Which candidates may be imported: selection, pins, then compatibility."""

from __future__ import annotations

from typing import Final

from ninfer_core.plugins.compat import incompatibility
from ninfer_core.plugins.discovery import Candidate
from ninfer_core.plugins.report import PluginReport
from ninfer_core.plugins.selection import Selection

BUILTIN: Final = "builtin"


def admit(candidate: Candidate, selection: Selection) -> PluginReport:
    """``ready``, or ``blocked`` or ``incompatible`` with reason and mend; nothing is imported."""
    report = PluginReport(
        name=candidate.name,
        dist=candidate.dist,
        version=candidate.version,
        location=candidate.location,
    )
    if excluded := _exclusion(candidate, selection):
        return report.ended("blocked", *excluded)
    if mismatch := _pin_mismatch(candidate, selection) or incompatibility(candidate):
        return report.ended("incompatible", *mismatch)
    return report


def _exclusion(candidate: Candidate, selection: Selection) -> tuple[str, str] | None:
    name = candidate.name
    if name in selection.blocked:
        return "left out by --no-plugin", f"remove `--no-plugin {name}`"
    if selection.pins:
        pinned = any(pin.name == name for pin in selection.pins)
        return None if pinned else ("not loaded by the parent process", f"add `--plugin {name}`")
    if selection.autoload or name == BUILTIN or name in selection.requested:
        return None
    return "NINFER_DISABLE_PLUGIN_AUTOLOAD is set", f"name it with `--plugin {name}`"


def _pin_mismatch(candidate: Candidate, selection: Selection) -> tuple[str, str] | None:
    for pin in selection.pins:
        installed = (candidate.dist, candidate.version)
        if pin.name == candidate.name and installed != (pin.dist, pin.version):
            return (
                f"the parent process runs {pin.dist} {pin.version}",
                "restart, so that both processes see one installation",
            )
    return None
