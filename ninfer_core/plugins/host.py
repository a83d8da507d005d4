"""The loaded plug-ins, as the rest of core sees them: typed records, and objects loaded late."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, TypeVar, cast

import pluggy

from ninfer_core.hookspecs import Entry, Seam
from ninfer_core.plugins.compat import missing_requirement
from ninfer_core.plugins.errors import (
    PluginConflict,
    PluginInactive,
    PluginLoadError,
    PluginNotFound,
    PluginUnavailable,
)
from ninfer_core.plugins.objects import load_object
from ninfer_core.plugins.registry import Offer, Registry
from ninfer_core.plugins.report import PluginPin, PluginReport
from ninfer_core.plugins.selection import Selection, normalise

E = TypeVar("E", bound=Entry)


class PluginHost:
    """Answers "which parts are there" and "give me this one".

    It is consulted when something starts, never inside a round: the objects it loads are called
    directly. ``manager`` is the pluggy manager, for hooks that plug-ins define among themselves.
    """

    def __init__(
        self,
        manager: pluggy.PluginManager,
        registry: Registry,
        reports: Iterable[PluginReport],
        selection: Selection,
    ) -> None:
        self.manager = manager
        self.selection = selection
        self._registry = registry
        self._reports = {report.name: report for report in reports}
        self._named = set(selection.requested)

    @property
    def reports(self) -> tuple[PluginReport, ...]:
        """Every plug-in found, sorted by name."""
        return tuple(self._reports[name] for name in sorted(self._reports))

    def report(self, plugin: str) -> PluginReport:
        """The report of one plug-in. Raises PluginNotFound."""
        name = normalise(plugin)
        if name not in self._reports:
            raise self._not_installed(name)
        return self._reports[name]

    def entries(self, seam: Seam[E]) -> tuple[E, ...]:
        """The entries of a seam that may be used, by descending priority, then by name.

        Left out are names with two providers and, in an active seam, entries of plug-ins that
        were not named. Entries marked ``unavailable`` are there, so that they can be explained.
        """
        offers = self._registry.of_seam(seam)
        usable = [o for o in offers if not seam.active or self._is_named(o.plugin)]
        return tuple(cast("E", offer.entry) for offer in usable)

    def described(self, seam: Seam[E]) -> tuple[E, ...]:
        """As ``entries``, with those of active seams whose plug-ins were not named."""
        return tuple(cast("E", offer.entry) for offer in self._registry.of_seam(seam))

    def get(self, seam: Seam[E], name: str) -> E:
        """The entry ``name`` of a seam.

        Raises PluginNotFound, PluginConflict (two providers), PluginInactive (an active entry
        whose plug-in was not named) or PluginUnavailable.
        """
        offer = self._offer(seam, name)
        report = self._reports[offer.plugin]
        if offer.entry.unavailable:
            raise PluginUnavailable(
                f"{offer.title} of {report.title} cannot be used: {offer.entry.unavailable}",
                hint=f"later versions may: {report.upgrade}",
            )
        if seam.active and not self._is_named(offer.plugin):
            raise PluginInactive(
                f"{offer.title} of {report.title} acts only when its plug-in is named",
                hint=f"add `--plugin {offer.plugin}`",
            )
        return cast("E", offer.entry)

    def provider(self, seam: Seam[Any], name: str) -> PluginReport:
        """The plug-in that offers ``name``. Raises PluginNotFound or PluginConflict."""
        return self._reports[self._offer(seam, name).plugin]

    def load(self, seam: Seam[Any], name: str, loader: str = "load") -> Any:
        """The object behind the field ``loader`` of the entry ``name``, imported now.

        Raises what ``get`` raises, and PluginLoadError when a requirement is missing or the import
        fails, with the original error as its cause.
        """
        entry = self.get(seam, name)
        report = self.provider(seam, name)
        missing = missing_requirement(entry.requirements)
        if missing is not None:
            raise PluginLoadError(
                f"{seam.noun} {name} of {report.title} cannot be loaded: {missing}",
                hint=f"pip install {' '.join(map(repr, entry.requirements))}",
            )
        try:
            return load_object(getattr(entry, loader))
        except Exception as error:
            raise PluginLoadError(
                f"{seam.noun} {name} of {report.title} cannot be loaded from "
                f"{getattr(entry, loader)!r}: {type(error).__name__}: {error}",
                hint=f"pip install --force-reinstall {report.dist}",
            ) from error

    def activate(self, plugin: str) -> None:
        """Name a plug-in after loading, as invoking its own command does. Raises PluginError."""
        report = self.report(plugin)
        self._named.add(report.name)
        if report.state == "registered":
            self._reports[report.name] = replace(report, state="active")

    def check(self) -> None:
        """Raise for the first plug-in that must act and cannot.

        Those are the requested ones, the pinned ones and, when strict, everything installed.
        """
        for name in self.selection.requested:
            self.report(name).check()
        for pin in self.selection.pins:
            if not self.report(pin.name).loaded:
                self.report(pin.name).check()
        for report in self.reports:
            if self.selection.strict and report.broken:
                report.check()

    def warnings(self) -> Iterator[str]:
        """One line for each broken plug-in that nobody asked for, and for a misspelt block."""
        for report in self.reports:
            if report.broken and report.name not in self.selection.requested:
                yield report.line
        for name in self.selection.blocked:
            if name not in self._reports:
                yield f"plug-in {name} is left out by --no-plugin, and is not installed anyway"

    def pins(self) -> tuple[PluginPin, ...]:
        """The plug-ins that loaded, for a child process: ``Selection(pins=host.pins())``."""
        return tuple(
            PluginPin(name=r.name, dist=r.dist, version=r.version) for r in self.reports if r.loaded
        )

    def _is_named(self, plugin: str) -> bool:
        return plugin in self._named

    def _offer(self, seam: Seam[Any], name: str) -> Offer:
        offers = self._registry.find(seam, name)
        if not offers:
            raise self._no_entry(seam, name)
        if len(offers) > 1:
            titles = " and ".join(self._reports[o.plugin].title for o in offers)
            raise PluginConflict(
                f"{seam.noun} {name!r} is offered by {titles}",
                hint=f"leave one out with `--no-plugin {offers[-1].plugin}`",
            )
        return offers[0]

    def _no_entry(self, seam: Seam[Any], name: str) -> PluginNotFound:
        known = [offer.entry.name for offer in self._registry.of_seam(seam)]
        close = get_close_matches(name, known, n=1)
        listing = f"installed: {', '.join(known) or 'none'}"
        hint = f"did you mean {close[0]!r}? {listing}" if close else listing
        return PluginNotFound(f"no {seam.noun} is named {name!r}", hint=hint)

    def _not_installed(self, name: str) -> PluginNotFound:
        installed = ", ".join(sorted(self._reports)) or "none"
        return PluginNotFound(
            f"plug-in {name} is not installed",
            hint=f"pip install ninfer-{name.replace('_', '-')}; installed: {installed}",
        )
