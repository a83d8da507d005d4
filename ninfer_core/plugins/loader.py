"""From metadata to registered plug-ins: every candidate ends in one state, with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module

import pluggy

from ninfer_core.hookspecs import SPECS
from ninfer_core.hookspecs.markers import PROJECT
from ninfer_core.plugins.admission import BUILTIN, admit
from ninfer_core.plugins.discovery import Candidate, discover
from ninfer_core.plugins.errors import PluginBlocked
from ninfer_core.plugins.host import PluginHost
from ninfer_core.plugins.registry import Registry, collect
from ninfer_core.plugins.report import PluginReport
from ninfer_core.plugins.selection import Selection


def load_plugins(
    selection: Selection | None = None,
    *,
    path: Sequence[str] | None = None,
    check: bool = True,
    warn: Callable[[str], None] | None = None,
) -> PluginHost:
    """Find, check, import and register the installed plug-ins.

    ``selection`` None means what the environment says. Broken plug-ins that were not asked for
    give one line each to ``warn`` (default: the logger ``ninfer.plugins``). With ``check`` a
    requested plug-in that cannot act raises its ``PluginError``; without it the caller reads
    ``host.reports`` and calls ``host.check()`` itself.
    """
    selection = Selection.of() if selection is None else selection
    _refuse_blocked_builtin(selection)
    loading = Loading(selection, discover(path))
    loading.run()
    host = PluginHost(loading.manager, loading.registry, loading.reports.values(), selection)
    if check:
        host.check()
    for line in host.warnings():
        (warn or _log)(line)
    return host


def host_of(plugins: Mapping[str, object], *, requested: Iterable[str] = ()) -> PluginHost:
    """An isolated host over plug-in objects in hand, for tests and embedding.

    Nothing is discovered. Raises the ``PluginError`` of the first plug-in that cannot register.
    """
    loading = Loading(Selection(requested=tuple(requested), strict=True), ())
    for name, plugin in plugins.items():
        loading.reports[name] = PluginReport(
            name=name, dist="in memory", version="0", location=str(getattr(plugin, "__file__", ""))
        )
        loading.register(name, plugin)
    loading.settle()
    host = PluginHost(
        loading.manager, loading.registry, loading.reports.values(), loading.selection
    )
    host.check()
    return host


def _refuse_blocked_builtin(selection: Selection) -> None:
    if BUILTIN in selection.blocked:
        raise PluginBlocked(
            f"plug-in {BUILTIN} is part of core and cannot be left out",
            hint=f"remove `--no-plugin {BUILTIN}`",
        )


def _log(line: str) -> None:
    import logging

    logging.getLogger("ninfer.plugins").warning(line)


class Loading:
    """One pass over the candidates; ``reports`` holds the state of each by name."""

    def __init__(self, selection: Selection, candidates: Sequence[Candidate]) -> None:
        self.selection = selection
        self.candidates = candidates
        self.reports: dict[str, PluginReport] = {}
        self.registry = Registry()
        self.manager = pluggy.PluginManager(PROJECT)
        for spec in SPECS:
            self.manager.add_hookspecs(spec)
        self.manager.hook.ninfer_add_hookspecs.call_historic(kwargs={"registrar": self})

    def add_hookspecs(self, namespace: object) -> None:
        """Accept the hooks that a plug-in defines (the registrar of ``ninfer_add_hookspecs``)."""
        for name in dir(namespace):
            spec = self.manager.parse_hookspec_opts(namespace, name)  # type: ignore[arg-type]
            if spec is not None and not name.startswith(f"{PROJECT}_"):
                raise ValueError(f"hook {name!r} must start with '{PROJECT}_'")
        self.manager.add_hookspecs(namespace)  # type: ignore[arg-type]

    def run(self) -> None:
        """Bring every candidate to its state."""
        for candidate in self.candidates:
            if candidate.name in self.reports:
                self._two_distributions(candidate)
            else:
                self.reports[candidate.name] = admit(candidate, self.selection)
        for candidate in self.candidates:
            if self.reports[candidate.name].state == "ready":
                self._import(candidate)
        self.settle()

    def register(self, name: str, plugin: object) -> None:
        """Hand one imported plug-in to pluggy; a refusal becomes its state."""
        try:
            self.manager.register(plugin, name=name)
        except Exception as error:
            self._fail(name, error)

    def settle(self) -> None:
        """Check hook names, call the registration hooks, and find names with two providers."""
        self._refuse_unknown_hooks()
        for name, plugin in self.manager.list_name_plugin():
            try:
                self.registry.add(collect(self.manager, plugin))
            except Exception as error:
                self._fail(name, error)
        self._describe()
        self._mark_conflicts()

    def _two_distributions(self, second: Candidate) -> None:
        first = self.reports[second.name]
        if first.state == "blocked":
            return
        others = f"{first.dist} {first.version} and {second.dist} {second.version}"
        self.reports[second.name] = first.ended(
            "conflict",
            f"two distributions provide the plug-in name {second.name!r}: {others}",
            f"pip uninstall {first.dist} or pip uninstall {second.dist}",
        )

    def _import(self, candidate: Candidate) -> None:
        try:
            module = import_module(candidate.module)
        except (Exception, SystemExit) as error:
            self._fail(candidate.name, error)
        else:
            self.register(candidate.name, module)

    def _fail(self, name: str, error: BaseException) -> None:
        report = self.reports[name]
        if self.manager.has_plugin(name):
            self.manager.unregister(name=name)
        cause = " ".join(str(error).split()) or "no message"
        mend = f"pip install --force-reinstall {report.dist}"
        self.reports[name] = report.ended(
            "failed",
            f"{type(error).__name__}: {cause}",
            f"{mend}, or leave it out with `--no-plugin {name}`",
        )

    def _refuse_unknown_hooks(self) -> None:
        while True:
            try:
                self.manager.check_pending()
            except pluggy.PluginValidationError as error:
                self._fail(str(self.manager.get_name(error.plugin)), error)
            else:
                return

    def _describe(self) -> None:
        for name, plugin in self.manager.list_name_plugin():
            offers = self.registry.of_plugin(name)
            callers = self.manager.get_hookcallers(plugin) or ()
            missing = [o.entry.unavailable for o in offers]
            self.reports[name] = replace(
                self.reports[name],
                state="active" if name in self.selection.requested else "registered",
                location=str(getattr(plugin, "__file__", self.reports[name].location)),
                hooks=tuple(sorted(caller.name for caller in callers)),
                provides=tuple(o.title for o in offers),
                unavailable="; ".join(missing) if missing and all(missing) else "",
            )

    def _mark_conflicts(self) -> None:
        for offers in self.registry.conflicts():
            parties = [self.reports[offer.plugin] for offer in offers]
            both = " and ".join(party.title for party in parties)
            for party in parties:
                self.reports[party.name] = party.ended(
                    "conflict",
                    f"{offers[0].title} is offered by {both}",
                    f"leave one out with `--no-plugin {party.name}`, or uninstall it",
                )
