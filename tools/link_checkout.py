"""Make the distributions of this checkout known where nothing can be built or downloaded.

Usage: python tools/link_checkout.py SITE

Writes the metadata of every distribution into SITE, so that plug-ins and commands are found, and a
``bin/ninfer``. The code stays where it is: prints the PYTHONPATH to use, checkout first, SITE last.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """#!{python}
import sys
from ninfer_core.cli import main
sys.exit(main())
"""


def folders() -> list[Path]:
    """The folder of each distribution, core first."""
    return [ROOT, *(path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml")))]


def core_version() -> str:
    """The one version that is not in a ``pyproject.toml``."""
    text = (ROOT / "ninfer_core" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def metadata(project: dict[str, Any], version: str) -> Iterator[str]:
    """The lines of METADATA."""
    yield "Metadata-Version: 2.4"
    yield f"Name: {project['name']}"
    yield f"Version: {version}"
    yield f"Keywords: {','.join(project.get('keywords', ()))}"
    yield from (f"Requires-Dist: {line}" for line in project.get("dependencies", ()))


def entry_points(project: dict[str, Any]) -> Iterator[str]:
    """The lines of ``entry_points.txt``."""
    groups = dict(project.get("entry-points", {}))
    if "scripts" in project:
        groups["console_scripts"] = project["scripts"]
    for group, entries in groups.items():
        yield f"[{group}]"
        yield from (f"{name} = {target}" for name, target in entries.items())


def link(folder: Path, site: Path) -> Path:
    """Write the metadata of one distribution and give its directory."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project.get("version") or core_version()
    info = site / f"{project['name'].replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("\n".join(metadata(project, version)) + "\n", encoding="utf-8")
    text = "\n".join(entry_points(project)) + "\n"
    (info / "entry_points.txt").write_text(text, encoding="utf-8")
    return info


def main() -> None:
    """Link all, and print the path."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path, help="where the metadata goes")
    site = parser.parse_args().site.resolve()
    for folder in folders():
        link(folder, site)
    program = site / "bin" / "ninfer"
    program.parent.mkdir(exist_ok=True)
    program.write_text(PROGRAM.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    print(os.pathsep.join(map(str, [*folders(), site])))


if __name__ == "__main__":
    main()
