"""Finding installed plug-ins from distribution metadata; nothing is imported here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageMetadata, distributions
from typing import Final

from ninfer_core.plugins.selection import normalise

GROUP: Final = "ninfer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An entry point of group ``ninfer`` and what its distribution's metadata says."""

    name: str
    module: str
    dist: str
    version: str
    location: str
    requires: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()


def discover(path: Sequence[str] | None = None) -> tuple[Candidate, ...]:
    """All installed plug-ins, sorted by name; ``path`` replaces ``sys.path``.

    Of two installs of one distribution the first on the path counts, as it does for imports.
    """
    found: list[Candidate] = []
    seen: set[str] = set()
    for dist in distributions() if path is None else distributions(path=list(path)):
        text = dist.read_text("entry_points.txt")
        if text and f"[{GROUP}]" in text:
            metadata = dist.metadata
            name = normalise(metadata["Name"])
            found += () if name in seen else _candidates(dist, metadata)
            seen.add(name)
    return tuple(sorted(found, key=lambda c: (c.name, c.dist)))


def _candidates(dist: Distribution, metadata: PackageMetadata) -> Iterator[Candidate]:
    keywords = ",".join(metadata.get_all("Keywords") or ())
    for entry_point in dist.entry_points.select(group=GROUP):
        yield Candidate(
            name=normalise(entry_point.name),
            module=entry_point.module,
            dist=metadata["Name"],
            version=metadata["Version"],
            location=str(dist.locate_file("")),
            requires=tuple(metadata.get_all("Requires-Dist") or ()),
            keywords=tuple(word.strip() for word in keywords.split(",")),
        )
