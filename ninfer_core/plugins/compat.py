"""Whether a plug-in fits this core, decided from metadata alone."""

from __future__ import annotations

import re

from ninfer_core.plugins.discovery import Candidate
from ninfer_core.version import API, CORE, __version__

_REQUIRES_CORE = re.compile(r"ninfer[-_.]core\s*(?:\[[^]]*])?\s*\(?([^;)]*)\)?\s*(;.*)?", re.I)
_API_KEYWORD = re.compile(r"ninfer-api-(\d+)\.(\d+)")


def incompatibility(candidate: Candidate) -> tuple[str, str] | None:
    """``(reason, mend)`` when ``candidate`` must not be imported, else None."""
    return _core_mismatch(candidate) or _api_mismatch(candidate)


def missing_requirement(requirements: tuple[str, ...]) -> str | None:
    """The first of ``requirements`` (PEP 508) that is not installed as asked, with the cause."""
    if not requirements:
        return None
    from importlib.metadata import PackageNotFoundError, version

    from packaging.requirements import Requirement

    for text in requirements:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            return f"{text} is not installed"
        if not wanted.specifier.contains(found, prereleases=True):
            return f"{text} is needed and {found} is installed"
    return None


def declared_api(candidate: Candidate) -> tuple[int, int] | None:
    """The plug-in API of the keyword ``ninfer-api-MAJOR.MINOR``, None when there is none."""
    for keyword in candidate.keywords:
        if match := _API_KEYWORD.fullmatch(keyword):
            return int(match[1]), int(match[2])
    return None


def _core_mismatch(candidate: Candidate) -> tuple[str, str] | None:
    specifier = _core_specifier(candidate.requires)
    if not specifier:
        return None
    from packaging.specifiers import SpecifierSet

    if SpecifierSet(specifier).contains(__version__, prereleases=True):
        return None
    return (
        f"needs {CORE}{specifier}, this is {__version__}",
        f"install a matching pair: pip install --upgrade {CORE} {candidate.dist}",
    )


def _core_specifier(requires: tuple[str, ...]) -> str:
    """All specifiers on core that hold unconditionally, joined."""
    matches = (_REQUIRES_CORE.fullmatch(line.strip()) for line in requires)
    return ",".join(m[1].strip() for m in matches if m and not m[2] and m[1].strip())


def _api_mismatch(candidate: Candidate) -> tuple[str, str] | None:
    ours = f"{API[0]}.{API[1]}"
    declared = declared_api(candidate)
    if declared is None:
        return (
            f'declares no plug-in API: its metadata lacks the keyword "ninfer-api-{ours}"',
            f"install a release that does: pip install --upgrade {candidate.dist}",
        )
    major, minor = declared
    if major == API[0] and minor <= API[1]:
        return None
    older = candidate.dist if declared < API else CORE
    return (
        f"was made for plug-in API {major}.{minor}, this core has {ours}",
        f"pip install --upgrade {older}",
    )
