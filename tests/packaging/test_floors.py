"""The floors: what each part of the house may import, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import pytest

HEAVY = ("torch", "triton", "cupy", "cuda", "xgrammar", "transformers")
TENSORS = (*HEAVY, "numpy")
INNER = ("ninfer_core.store", "ninfer_core.ops", "ninfer_core.device")

LIGHT = {
    "ninfer_core/hookspecs": (*TENSORS, "pydantic", "typer"),
    "ninfer_core/plugins": (*TENSORS, "pydantic", "typer"),
    "ninfer_core/contract": TENSORS,
    "ninfer_core/cli": (*TENSORS, "pydantic"),
    "ninfer_core/__init__.py": (*TENSORS, "pydantic", "typer"),
    "ninfer_core/builtin.py": (*TENSORS, "pydantic", "typer"),
}
"""Paths whose module level must stay light; imports inside functions and for typing are free."""

FLOORS = {
    "ninfer_core/contract": ("ninfer_core.engine", "ninfer_core.inputs", *INNER),
    "ninfer_core/hookspecs": ("ninfer_core.engine", *INNER),
    "ninfer_core/engine": (*HEAVY, "ninfer_core.artifact", *INNER),
    "ninfer_core/store": ("ninfer_core.engine", "ninfer_core.instance"),
    "ninfer_core/ops": ("ninfer_core.engine", "ninfer_core.store", "ninfer_core.instance"),
    "ninfer_core/device": ("ninfer_core.engine", "ninfer_core.instance"),
    "ninfer_core/artifact": ("ninfer_core.engine", "ninfer_core.store", "ninfer_core.instance"),
    "plugins/gateway_http": ("torch", "ninfer_core.artifact", "ninfer_core.instance", *INNER),
    "plugins/gateway_cli": ("torch", "ninfer_core.instance", *INNER),
    "plugins/qwen3_5": ("ninfer_core.engine", "ninfer_core.inputs", "ninfer_core.instance"),
}
"""Paths and what they must not import anywhere outside typing."""

PUBLIC_ENGINE = "ninfer_core.engine"
"""Gateways take ``Engine`` from the package's surface, never from the modules behind it."""


def imported(path: Path, *, everywhere: bool) -> Iterator[tuple[str, int]]:
    """Absolute names that ``path`` imports; TYPE_CHECKING blocks are left out."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending += ast.iter_child_nodes(node)


def breaches(root: Path, folder: str, banned: tuple[str, ...], *, everywhere: bool) -> list[str]:
    """``file:line imports name`` for every banned import under ``folder``."""
    top = root / folder
    files = [top] if top.is_file() else sorted(top.rglob("*.py"))
    return [
        f"{file.relative_to(root)}:{line} imports {name}"
        for file in files
        for name, line in sorted(imported(file, everywhere=everywhere), key=itemgetter(1))
        if any(name == ban or name.startswith(f"{ban}.") for ban in banned)
    ]


@pytest.mark.parametrize("folder", LIGHT)
def test_light_parts_import_nothing_heavy(root, folder):
    assert (root / folder).exists()
    assert breaches(root, folder, LIGHT[folder], everywhere=False) == []


@pytest.mark.parametrize("folder", FLOORS)
def test_nothing_imports_upward(root, folder):
    assert (root / folder).exists()
    assert breaches(root, folder, FLOORS[folder], everywhere=True) == []


def test_core_imports_no_plugin(root, packages):
    plugins = tuple(name for name in packages if name != "ninfer_core")
    assert breaches(root, "ninfer_core", plugins, everywhere=True) == []


def test_no_plugin_imports_another(root, packages):
    found = []
    for name, folder in packages.items():
        others = tuple(p for p in packages if p not in (name, "ninfer_core"))
        found += breaches(root, str(folder.relative_to(root)), others, everywhere=True)
    assert found == []


@pytest.mark.parametrize("gateway", ["gateway_cli", "gateway_http"])
def test_gateways_use_the_public_engine(root, gateway):
    behind = [
        breach
        for breach in breaches(root, f"plugins/{gateway}", (PUBLIC_ENGINE,), everywhere=True)
        if not breach.endswith((" ninfer_core.engine.Engine", " ninfer_core.engine"))
    ]
    assert behind == []


def test_plugin_descriptors_are_light(root, packages):
    heavy = (*TENSORS, "pydantic", "typer", "fastapi", "uvicorn", "tokenizers", "jinja2")
    files = [p / "plugin.py" for p in packages.values() if p.name != "ninfer_core"]
    assert len(files) >= 9
    assert [b for f in files for b in breaches(root, str(f.relative_to(root)), heavy,
            everywhere=False)] == []  # fmt: skip


def test_the_reader_sees_each_form_of_import(tmp_path):
    (tmp_path / "m.py").write_text(
        "import a.b\nfrom c import d\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import hidden\nelse:\n    import shown\n"
        "class K:\n    import e\n"
        "def f():\n    import g\n"
        "try:\n    import h\nexcept ImportError:\n    pass\n"
    )
    everywhere = {name for name, _ in imported(tmp_path / "m.py", everywhere=True)}
    assert everywhere == {"a.b", "c.d", "typing.TYPE_CHECKING", "shown", "e", "g", "h"}
    module = {name for name, _ in imported(tmp_path / "m.py", everywhere=False)}
    assert module == everywhere - {"g"}
    assert breaches(tmp_path, "m.py", ("a", "c.d", "hidden"), everywhere=True) == [
        "m.py:1 imports a.b",
        "m.py:2 imports c.d",
    ]
