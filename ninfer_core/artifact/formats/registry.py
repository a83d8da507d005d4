"""The table of weight formats, filled by the composition root from plug-in records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ninfer_core.artifact.errors import ArtifactError
from ninfer_core.artifact.formats.base import WeightFormat
from ninfer_core.artifact.formats.plain import BF16, FP32, INT32
from ninfer_core.artifact.formats.row_groups import Q4_GROUPS
from ninfer_core.artifact.formats.row_scale import FP8_ROW


class FormatRegistry:
    """Weight formats by name; two formats of one name are refused.

    ``loaders`` are formats that are loaded when an artifact first names them, so that one which is
    broken harms only those who need it.
    """

    def __init__(
        self,
        formats: Iterable[WeightFormat],
        loaders: Mapping[str, Callable[[], WeightFormat]] | None = None,
    ) -> None:
        self._formats: dict[str, WeightFormat] = {}
        self._loaders = dict(loaders or {})
        for entry in formats:
            if entry.name in self._formats:
                raise ArtifactError(
                    f"weight format {entry.name!r}",
                    "is registered twice",
                    "uninstall one of the plug-ins that provide it",
                )
            self._formats[entry.name] = entry

    def find(self, name: str) -> WeightFormat | None:
        """The format, loaded if need be; None when nobody provides it."""
        if name not in self._formats and name in self._loaders:
            self._formats[name] = self._loaders[name]()
        return self._formats.get(name)

    def get(self, name: str, field: str) -> WeightFormat:
        """The format a consumer needs for ``field``; raises `ArtifactError` when it is unknown."""
        found = self.find(name)
        if found is None:
            raise ArtifactError(
                field,
                f"has the unknown format {name!r}",
                f"install the plug-in that provides it; known are {', '.join(self.names())}",
            )
        return found

    def names(self) -> tuple[str, ...]:
        """All that can be asked for, sorted."""
        return tuple(sorted({*self._formats, *self._loaders}))


BUILTIN_FORMATS: tuple[WeightFormat, ...] = (BF16, FP32, INT32, FP8_ROW, Q4_GROUPS)


def builtin_registry() -> FormatRegistry:
    """The formats that core itself provides: plain ones, fp8 by rows and q4 by groups."""
    return FormatRegistry(BUILTIN_FORMATS)
