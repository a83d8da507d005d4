"""Seam: formats of stored weights and of the KV cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from ninfer_core.hookspecs.markers import hookspec
from ninfer_core.hookspecs.records import Entry, Seam


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormatEntry(Entry):
    """A weight format; ``load`` loads the format object of ``ninfer_core.artifact``."""

    load: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormatEntry(Entry):
    """A KV cache format, by what it stores; op backends and architectures read and write it.

    ``dtype`` is the torch name of the stored element ("bfloat16"), ``bits_per_value`` the whole
    storage of one value, scales included. An architecture that does not know the name refuses it.
    """

    LOADERS: ClassVar[tuple[str, ...]] = ()

    dtype: str
    bits_per_value: float


class FormatSpecs:
    """Hooks for plug-ins that bring a storage format."""

    @hookspec
    def ninfer_weight_formats(self) -> Iterable[WeightFormatEntry]:
        """Offer weight formats.

        Since: api 1.0.
        Called: once per process, when plug-ins load.
        Returns: entries; ``name`` is the format name written in artifacts.
        Threading: main thread, before any tensor library is imported.
        Example::

            @hookimpl
            def ninfer_weight_formats():
                yield WeightFormatEntry(name="int4_rows", load="ninfer_int4.formats:INT4_ROWS")
        """
        return ()

    @hookspec
    def ninfer_kv_formats(self) -> Iterable[KvFormatEntry]:
        """Offer KV cache formats.

        Since: api 1.0.
        Called: once per process, when plug-ins load.
        Returns: entries; ``name`` is what ``--kv-dtype`` takes.
        Threading: main thread, before any tensor library is imported.
        Example::

            @hookimpl
            def ninfer_kv_formats():
                yield KvFormatEntry(name="bf16", dtype="bfloat16", bits_per_value=16)
        """
        return ()


WEIGHT_FORMATS: Final = Seam("ninfer_weight_formats", "weight format", WeightFormatEntry)
KV_FORMATS: Final = Seam("ninfer_kv_formats", "KV format", KvFormatEntry)
