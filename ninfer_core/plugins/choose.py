"""Choosing the architecture that runs a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core.hookspecs import ARCHITECTURES, ArchitectureEntry
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
