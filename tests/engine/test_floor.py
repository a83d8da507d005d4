"""The engine stands on the contract alone, and importing it is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import ninfer_core.engine

ROOT = Path(ninfer_core.engine.__file__).parent
BELOW = ("ninfer_core.closing", "ninfer_core.errors")
"""They import the standard library alone."""
ALLOWED = ("ninfer_core.contract", "ninfer_core.engine", *BELOW)
LATE = "ninfer_core.instance"
"""The composition root, imported inside ``Engine.open`` only."""


def imported(tree, top_level):
    nodes = tree.body if top_level else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_engine_modules_import_nothing_above_or_beside_the_contract():
    files = sorted(ROOT.glob("*.py"))
    assert len(files) > 20
    for path in files:
        tree = ast.parse(path.read_text())
        for name in imported(tree, top_level=False):
            first = name.partition(".")[0]
            ours = name.startswith(ALLOWED)
            late = name == LATE and path.name == "facade.py"
            assert ours or late or first in sys.stdlib_module_names, f"{path.name} imports {name}"
        assert LATE not in imported(tree, top_level=True)


def test_importing_the_engine_imports_no_tensor_library():
    script = (
        "import sys, ninfer_core\n"
        "ninfer_core.Engine\n"
        "print(sorted({'torch', 'numpy', 'pydantic', 'ninfer_core.instance'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
