"""What can be wrong with plug-ins; every message names the distribution, the cause and the mend."""

from __future__ import annotations

from ninfer_core.errors import NinferError


class PluginError(NinferError):
    """A plug-in cannot do what was asked of it."""

    exit_code = 2


class PluginNotFound(PluginError):
    """No installed plug-in has the name, or none offers the entry."""


class PluginBlocked(PluginError):
    """The plug-in was asked for and left out at the same time."""


class PluginIncompatible(PluginError):
    """The plug-in was made for another version of core or of the plug-in API."""


class PluginConflict(PluginError):
    """Two distributions provide one name."""


class PluginLoadError(PluginError):
    """Importing the plug-in, calling its hooks or loading one of its entries failed."""


class PluginInactive(PluginError):
    """The entry acts only when its plug-in is named, and it was not."""


class PluginUnavailable(PluginError):
    """The entry is described by its plug-in, but this version does not run it yet."""
