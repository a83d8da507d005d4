"""Seam: gateways that speak a protocol to the outside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ninfer_core.hookspecs.markers import hookspec
from ninfer_core.hookspecs.records import Entry, Seam


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayEntry(Entry):
    """A gateway; ``load`` loads ``(engine: EngineLike) -> gateway`` and touches no inner floor.

    ``network`` says that it opens a port.
    """

    load: str
    network: bool = True


class GatewaySpecs:
    """Hooks for plug-ins that serve an engine."""

    @hookspec
    def ninfer_gateways(self) -> Iterable[GatewayEntry]:
        """Offer gateways.

        Since: api 1.0.
        Called: once per process, when plug-ins load; active only when its plug-in is named, or
            when its own command is invoked.
        Returns: entries, which this version lists and refuses: a gateway brings a command
            (``ninfer_commands``) that opens the engine and serves it.
        Threading: main thread.
        Example::

            @hookimpl
            def ninfer_gateways():
                yield GatewayEntry(name="http", load="ninfer_gateway_http.app:create_app")
        """
        return ()


GATEWAYS: Final = Seam(
    "ninfer_gateways",
    "gateway",
    GatewayEntry,
    active=True,
    unserved="this version of ninfer-core starts gateways by commands of their own alone",
)
