"""README and docs: what they name exists."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest

COMMANDS = (
    *("run", "chat", "serve", "convert", "inspect", "verify"),
    *("bench", "bench chat", "plugins", "env"),
)
OTHERS = {"--pyargs", "--ninfer-plugin", "--dist"}
"""Options of pytest: its own, our plug-in's and pytest-xdist's."""


@pytest.fixture(scope="module")
def pages(root):
    """Path from the root to text, of every page."""
    files = [root / "README.md", root / "bench/README.md", *sorted((root / "docs").glob("*.md"))]
    return {str(file.relative_to(root)): file.read_text(encoding="utf-8") for file in files}


@pytest.fixture(scope="module")
def options():
    """Every option that the help of `ninfer` or of one of its commands names."""
    code = "import sys; from ninfer_core.cli import main; sys.exit(main())"
    said = ""
    for command in ([], *(name.split() for name in COMMANDS)):
        said += subprocess.run(
            [sys.executable, "-c", code, *command, "--help"],
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip
    return flags(said)


def flags(text):
    return set(re.findall(r"(?<![-\w])--[a-z][a-z-]+(?![-\w])", text))


def resolve(name):
    """The object behind a dotted name; its longest importable prefix is the module."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise LookupError(name)


def test_options_exist(pages, options):
    assert {"--greedy", "--max-concurrency", "--output", "--no-plugin"} <= options
    unknown = {page: flags(text) - options - OTHERS for page, text in pages.items()}
    assert {page: names for page, names in unknown.items() if names} == {}


def test_every_option_is_on_a_page(pages, options):
    named = set().union(*map(flags, pages.values()))
    assert options - named - {"--help", "--install-completion", "--show-completion"} == set()


def test_links_lead_somewhere(root, pages):
    broken = [
        f"{page}: {link}"
        for page, text in pages.items()
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
        if "://" not in link and not (root / page).parent.joinpath(link).exists()
    ]
    assert broken == []


def test_dotted_names_resolve(pages):
    names = {
        name
        for text in pages.values()
        for name in re.findall(r"`(ninfer_(?:core|qwen3_5)(?:\.\w+)+)`", text)
    }
    assert len(names) >= 10
    for name in sorted(names):
        resolve(name)


def test_the_readme_counts_the_seams(pages):
    from ninfer_core.hookspecs import SEAMS

    words = {10: "ten", 11: "eleven", 12: "twelve", 13: "thirteen"}
    assert f"[{words[len(SEAMS)]} seams](docs/plugins.md)" in pages["README.md"]


def test_the_scripts_of_bench_are_all_listed(root, pages):
    speed, acceptance = pages["bench/README.md"].split("## Acceptance")
    stages = {path.name for path in root.glob("bench/accept/gpu_*.py")}
    for text, folder in ((speed, root / "bench"), (acceptance, root / "bench/accept")):
        listed = set(re.findall(r"`([a-z]\w*\.py)`", text))
        assert listed == {path.name for path in folder.glob("[a-z]*.py")} - stages


def test_every_page_is_reached_from_the_readme(pages):
    for page in pages.keys() - {"README.md"}:
        assert f"]({page})" in pages["README.md"]
