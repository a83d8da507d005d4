"""The cases themselves; a subclass names what to check and overrides nothing."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final

from ninfer_core.hookspecs import COMMANDS, MODEL_SOURCES, SEAMS, Entry, Seam, Verdict
from ninfer_core.plugins import PluginHost, PluginReport, load_object
from ninfer_core.plugins.compat import declared_api, missing_requirement
from ninfer_core.plugins.discovery import Candidate, discover
from ninfer_core.version import API

HEAVY: Final = (
    "cuda", "cupy", "numpy", "pydantic", "torch", "transformers", "triton", "typer", "xgrammar",
)  # fmt: skip
"""What a ``plugin.py`` must not import: it runs at every ``ninfer --help``."""

_PINNED_CORE = re.compile(r"ninfer[-_.]core\b[^;]*<[^;]*", re.I)


class Case:
    """Base of all cases: refuses a subclass that replaces a check."""

    plugin: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        for base in cls.__mro__[1:]:
            for name in vars(base).keys() & vars(cls).keys():
                if name.startswith("test_"):
                    raise TypeError(f"{cls.__name__} must not override {base.__name__}.{name}")


class PluginCase(Case):
    """What holds for every plug-in; ``plugin`` is its entry-point name."""

    def test_metadata(self, ninfer_plugin: str) -> None:
        """One distribution provides it, declares the plug-in API and bounds ``ninfer-core``."""
        candidate = _candidate(ninfer_plugin)
        assert declared_api(candidate) == API, f'add "ninfer-api-{API[0]}.{API[1]}" to keywords'
        if candidate.dist != "ninfer-core":
            assert any(_PINNED_CORE.match(line) for line in candidate.requires), (
                "dependencies must name ninfer-core with an upper bound"
            )

    def test_package_is_typed(self, ninfer_plugin: str) -> None:
        """The import package holds ``py.typed``."""
        spec = find_spec(_candidate(ninfer_plugin).module.partition(".")[0])
        assert spec is not None
        assert spec.origin is not None
        assert (Path(spec.origin).parent / "py.typed").is_file()

    def test_import_is_light(self, ninfer_plugin: str) -> None:
        """Importing the entry point in a fresh interpreter imports no heavy package."""
        code = (
            f"import sys, {_candidate(ninfer_plugin).module}\n"
            f"print(*sorted({{m.partition('.')[0] for m in sys.modules}} & {set(HEAVY)!r}))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == []

    def test_loads(self, ninfer_plugin: str, ninfer_host: PluginHost) -> None:
        """It registers without a reason to complain, and implements at least one hook."""
        report = ninfer_host.report(ninfer_plugin)
        assert report.state == "registered", report.line
        assert report.hooks

    def test_entries_explain_themselves(self, ninfer_plugin: str, ninfer_host: PluginHost) -> None:
        """Every entry has a summary, or a help line for commands."""
        for seam, entry in _offers(ninfer_plugin, ninfer_host):
            said = getattr(entry, "help", "") or entry.summary
            assert said, f"{seam.noun} {entry.name} says nothing of itself"

    def test_loaders_resolve(self, ninfer_plugin: str, ninfer_host: PluginHost) -> None:
        """Every loader string of an available entry whose requirements are met names an object."""
        for seam, entry in _offers(ninfer_plugin, ninfer_host):
            if entry.unavailable or missing_requirement(entry.requirements):
                continue
            for field in entry.LOADERS:
                if spec := getattr(entry, field):
                    assert load_object(spec) is not None, f"{seam.noun} {entry.name}.{field}"

    def test_accepts_takes_one_argument(self, ninfer_plugin: str, ninfer_host: PluginHost) -> None:
        """Every ``accepts`` is a function of one positional argument."""
        for seam, entry in _offers(ninfer_plugin, ninfer_host):
            accepts = getattr(entry, "accepts", None)
            if accepts is not None:
                signature = inspect.signature(accepts)
                signature.bind(object())
                said = signature.return_annotation
                assert said in (Verdict, "Verdict"), f"{seam.noun} {entry.name}: {said}"


class CommandCase(Case):
    """What holds for a command; ``command`` is its name."""

    command: ClassVar[str]

    def test_offered_by_plugin(self, ninfer_host: PluginHost) -> None:
        """The plug-in and no other offers it."""
        assert ninfer_host.provider(COMMANDS, self.command).name == self.plugin

    def test_help(self) -> None:
        """``ninfer COMMAND --help`` ends with 0 and names the command."""
        done = _ninfer(self.command, "--help")
        assert done.returncode == 0, done.stderr
        assert f"ninfer {self.command}" in done.stdout

    def test_refuses_unknown_option(self) -> None:
        """An option that does not exist ends with 2 and is named on stderr."""
        done = _ninfer(self.command, "--no-such-option-exists")
        assert done.returncode == 2
        assert "--no-such-option-exists" in done.stderr


class ModelSourceCase(Case):
    """What holds for a model source; ``source`` is its name."""

    source: ClassVar[str]

    def test_offered_by_plugin(self, ninfer_host: PluginHost) -> None:
        """The plug-in and no other offers it."""
        assert ninfer_host.provider(MODEL_SOURCES, self.source).name == self.plugin

    def test_resolves(self, ninfer_host: PluginHost) -> None:
        """It gives an artifact or a Hugging Face directory, the same one each time."""
        from ninfer_core.models import resolve_model

        first = resolve_model(self.source, ninfer_host)
        assert first.source == self.source
        assert first == resolve_model(self.source, ninfer_host)
        if first.kind == "ninfer":
            assert first.path.suffix == ".ninfer"


def _candidate(plugin: str) -> Candidate:
    found = [candidate for candidate in discover() if candidate.name == plugin]
    assert len(found) == 1, f"plug-in {plugin}: {len(found)} distributions provide it"
    return found[0]


def _offers(plugin: str, host: PluginHost) -> list[tuple[Seam[Any], Entry]]:
    report: PluginReport = host.report(plugin)
    return [
        (seam, entry)
        for seam in SEAMS
        for entry in host.described(seam)
        if host.provider(seam, entry.name) is report
    ]


def _ninfer(*args: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from ninfer_core.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
