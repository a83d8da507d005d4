"""Finding installed plug-ins from distribution metadata; nothing is imported here.

Reads the ``*.dist-info`` directories on the path, the standard record of installed distributions.
``importlib.metadata`` would do, at 25 ms of imports per ``ninfer --help``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    for info in _dist_infos(sys.path if path is None else path):
        modules = _entry_points(_read(info, "entry_points.txt"))
        if modules:
            headers = _headers(_read(info, "METADATA"))
            dist = headers["Name"][0]
            if normalise(dist) not in seen:
                seen.add(normalise(dist))
                found += _candidates(modules, headers, os.path.dirname(info))
    return tuple(sorted(found, key=lambda c: (c.name, c.dist)))


def _candidates(
    modules: dict[str, str], headers: dict[str, list[str]], location: str
) -> Iterator[Candidate]:
    keywords = ",".join(headers.get("Keywords", ())).split(",")
    for name, module in modules.items():
        yield Candidate(
            name=normalise(name),
            module=module,
            dist=headers["Name"][0],
            version=headers["Version"][0],
            location=location,
            requires=tuple(headers.get("Requires-Dist", ())),
            keywords=tuple(word.strip() for word in keywords),
        )


def _dist_infos(path: Sequence[str]) -> Iterator[str]:
    for folder in path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:
            continue
        yield from (os.path.join(folder, name) for name in names if name.endswith(".dist-info"))


def _read(info: str, name: str) -> str:
    try:
        with open(os.path.join(info, name), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _entry_points(text: str) -> dict[str, str]:
    """Name to module of section ``[ninfer]``."""
    section, modules = "", {}
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section == GROUP and "=" in line and not line.startswith("#"):
            name, _, module = line.partition("=")
            modules[name.strip()] = module.strip()
    return modules


def _headers(text: str) -> dict[str, list[str]]:
    """The fields before the description; folded lines are joined."""
    fields: dict[str, list[str]] = {"Name": [], "Version": []}
    name = ""
    for line in text.splitlines():
        if not line:
            break
        if line[0].isspace() and name:
            fields[name][-1] += f" {line.strip()}"
        else:
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.strip())
    fields["Name"] = fields["Name"] or ["unknown"]
    fields["Version"] = fields["Version"] or ["0"]
    return fields
