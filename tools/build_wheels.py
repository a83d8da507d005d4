"""Build the wheel of every distribution of this repository.

Usage: python tools/build_wheels.py DIST [--extra FOLDER ...]

Needs hatchling in the running environment; builds in place, without isolation and without network.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[1]


def folders() -> list[Path]:
    """The folder of each distribution, core first."""
    return [ROOT, *(path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml")))]


def build(folder: Path, dist: Path) -> Path:
    """Build one wheel into ``dist`` and give its path."""
    [wheel] = WheelBuilder(str(folder)).build(directory=str(dist), versions=["standard"])
    return Path(wheel)


def main() -> None:
    """Build all, and print each file with its size."""
    parser = argparse.ArgumentParser(description="Build the wheel of every distribution.")
    parser.add_argument("dist", type=Path, help="where the wheels go")
    parser.add_argument(
        "--extra", type=Path, action="append", default=[], help="another project to build as well"
    )
    options = parser.parse_args()
    for folder in [*folders(), *options.extra]:
        wheel = build(folder, options.dist)
        print(f"{wheel.stat().st_size / 1e6:8.2f} MB  {wheel.name}")


if __name__ == "__main__":
    main()
