"""Calling registration hooks: typed records, each with the plug-in that offers it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pluggy

from ninfer_core.hookspecs import SEAMS, Entry, Seam

_SEAM_OF: Final = {seam.hook: seam for seam in SEAMS}


@dataclass(frozen=True, slots=True)
class Offer:
    """``entry``, offered by the plug-in of that name."""

    plugin: str
    seam: Seam[Any]
    entry: Entry

    @property
    def title(self) -> str:
        """The entry for messages: "command run"."""
        return f"{self.seam.noun} {self.entry.name}"


@dataclass(slots=True)
class Registry:
    """Every offer, by hook and entry name; a name with more than one offer is a conflict."""

    _offers: dict[str, dict[str, list[Offer]]] = field(default_factory=dict)

    def add(self, offers: Iterable[Offer]) -> None:
        """Add all offers of one plug-in."""
        for offer in offers:
            named = self._offers.setdefault(offer.seam.hook, {})
            named.setdefault(offer.entry.name, []).append(offer)

    def find(self, seam: Seam[Any], name: str) -> tuple[Offer, ...]:
        """The offers of ``name``: none, one, or the parties of a conflict."""
        return tuple(self._offers.get(seam.hook, {}).get(name, ()))

    def of_seam(self, seam: Seam[Any]) -> tuple[Offer, ...]:
        """The unambiguous offers of a seam, by descending priority, then by name."""
        single = [o[0] for o in self._offers.get(seam.hook, {}).values() if len(o) == 1]
        return tuple(sorted(single, key=lambda o: (-o.entry.priority, o.entry.name)))

    def of_plugin(self, plugin: str) -> tuple[Offer, ...]:
        """All offers of one plug-in, in the order of the seams."""
        return tuple(o for offers in self._groups() for o in offers if o.plugin == plugin)

    def conflicts(self) -> Iterator[list[Offer]]:
        """Groups of offers that share one name."""
        return (offers for offers in self._groups() if len(offers) > 1)

    def _groups(self) -> Iterator[list[Offer]]:
        for seam in SEAMS:
            yield from self._offers.get(seam.hook, {}).values()


def collect(manager: pluggy.PluginManager, plugin: object) -> list[Offer]:
    """What ``plugin`` offers through all registration hooks.

    Raises TypeError for a record of the wrong type, ValueError for a name offered twice or a hook
    that is wrapped, and whatever the plug-in's own hooks raise.
    """
    name = str(manager.get_name(plugin))
    offers: list[Offer] = []
    for caller in manager.get_hookcallers(plugin) or ():
        seam = _SEAM_OF.get(caller.name)
        if seam is not None:
            impl = next(i for i in caller.get_hookimpls() if i.plugin is plugin)
            offers += _call(name, seam, impl)
    return offers


def _call(plugin: str, seam: Seam[Any], impl: pluggy.HookImpl) -> list[Offer]:
    if impl.wrapper or impl.hookwrapper:
        raise ValueError(f"{seam.hook} is a registration hook and cannot be wrapped")
    if impl.argnames:
        raise TypeError(f"{seam.hook} takes no arguments, not {', '.join(impl.argnames)}")
    returned: Any = impl.function()
    if not isinstance(returned, Iterable):
        raise TypeError(f"{seam.hook} returned {returned!r}, not records")
    names: set[str] = set()
    offers = []
    for entry in returned:
        if not isinstance(entry, seam.record):
            raise TypeError(f"{seam.hook} returned {entry!r}, not a {seam.record.__name__}")
        if entry.name in names:
            raise ValueError(f"{seam.hook} offers {entry.name!r} twice")
        names.add(entry.name)
        if seam.unserved and not entry.unavailable:
            entry = replace(entry, unavailable=seam.unserved)
        offers.append(Offer(plugin, seam, entry))
    return offers
