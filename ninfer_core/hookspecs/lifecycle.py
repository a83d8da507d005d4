"""Seam: hooks about plug-ins themselves."""

from __future__ import annotations

from typing import Protocol

from ninfer_core.hookspecs.markers import hookspec


class HookspecRegistrar(Protocol):
    """What ``ninfer_add_hookspecs`` may do."""

    def add_hookspecs(self, namespace: object) -> None:
        """Add every ``hookspec`` of a module or class. Names start with ``ninfer_``."""


class LifecycleSpecs:
    """Hooks for plug-ins that other plug-ins extend."""

    @hookspec(historic=True)
    def ninfer_add_hookspecs(self, registrar: HookspecRegistrar) -> None:
        """Define hooks of your own, which other plug-ins may then implement.

        Since: api 1.0.
        Called: once per plug-in, when it is registered, before hook names are checked.
        Returns: nothing.
        Threading: main thread.
        Example::

            @hookimpl
            def ninfer_add_hookspecs(registrar):
                registrar.add_hookspecs(HttpSpecs)
        """
