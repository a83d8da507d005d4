"""A factory that installs plug-ins: a module and a dist-info directory, as pip would leave them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from ninfer_core.plugins import PluginHost, Selection, load_plugins

FORMATS = """
from ninfer_core import hookimpl
from ninfer_core.hookspecs import WeightFormatEntry

@hookimpl
def ninfer_weight_formats():
    yield WeightFormatEntry(name="{name}", summary="s", load="json:dumps")
"""


@dataclass
class Site:
    """A directory of installed distributions, first on the path of this process and of children."""

    root: Path
    serial: int = 0

    def install(
        self,
        name: str,
        source: str | None = None,
        *,
        dist: str | None = None,
        version: str = "1.0",
        requires: Sequence[str] = ("ninfer-core>=0.1,<0.2",),
        keywords: str = "ninfer-api-1.0",
    ) -> str:
        """Install plug-in ``name`` (by default one that offers the weight format ``name``)."""
        self.serial += 1
        module = f"site_{self.root.name}_{self.serial}_{name}".replace("-", "_")
        dist = dist or f"their-{name}"
        text = FORMATS.format(name=name) if source is None else textwrap.dedent(source)
        (self.root / f"{module}.py").write_text(text)
        info = self.root / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = [f"Name: {dist}", f"Version: {version}", f"Keywords: {keywords}"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.4", *lines, "", "Text"]))
        (info / "entry_points.txt").write_text(f"[ninfer]\n{name} = {module}\n")
        return module

    def load(self, *requested: str, check: bool = True, **selection: object) -> PluginHost:
        """Load what is installed here and nothing else."""
        self.lines: list[str] = []
        return load_plugins(
            Selection(requested=requested, **selection),
            path=[str(self.root)],
            check=check,
            warn=self.lines.append,
        )


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty site directory."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Site(tmp_path)
    for name in [n for n in sys.modules if n.startswith(f"site_{tmp_path.name}_")]:
        del sys.modules[name]


@pytest.fixture
def ninfer(site) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a child process that sees ``site`` besides what is installed."""

    def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
        code = "import sys; from ninfer_core.cli import main; sys.exit(main())"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("NINFER_")}
        return subprocess.run(
            [sys.executable, "-c", code, *args],
            env={**clean, "PYTHONPATH": str(site.root), **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
