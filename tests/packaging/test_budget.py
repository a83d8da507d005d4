"""The house budget: short files of one subject, short functions, an annotated public surface."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

FILE_LINES = 300
KERNEL_LINES = 600
FUNCTION_LINES = 60
MEDIAN_LINES = 8


@pytest.fixture(scope="module")
def sources(root, packages) -> dict[str, str]:
    """Path from the root to text, of every file of every package."""
    files = [file for package in packages.values() for file in sorted(package.rglob("*.py"))]
    return {str(file.relative_to(root)): file.read_text(encoding="utf-8") for file in files}


@pytest.fixture(scope="module")
def tests(root) -> dict[str, str]:
    """Path from the root to text, of every test file and what tests share."""
    folders = [root / "tests", *sorted(root.glob("examples/*/tests"))]
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    return {str(file.relative_to(root)): file.read_text(encoding="utf-8") for file in files}


def is_kernel_file(path: str, text: str) -> bool:
    """Kernels are in ``ops_triton``, or say so by their decorator."""
    return Path(path).parts[1] == "ops_triton" or "@triton.jit" in text


def functions(text: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, without the docstring."""
    total = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        total -= node.body[0].end_lineno - node.body[0].lineno + 1
    return total


def test_files_are_short(sources):
    long = {}
    for path, text in sources.items():
        limit = KERNEL_LINES if is_kernel_file(path, text) else FILE_LINES
        if text.count("\n") > limit:
            long[path] = text.count("\n")
    assert long == {}


def test_test_files_are_short(tests):
    assert "tests/packaging/test_budget.py" in tests
    lengths = {path: text.count("\n") for path, text in tests.items()}
    assert {path: n for path, n in lengths.items() if n > FILE_LINES} == {}


def test_functions_are_short(sources):
    lengths = {
        f"{path}:{node.lineno} {node.name}": code_lines(node)
        for path, text in sources.items()
        for node in functions(text)
        if not is_kernel_file(path, text)
    }
    assert {name: n for name, n in lengths.items() if n > FUNCTION_LINES} == {}
    assert statistics.median(lengths.values()) <= MEDIAN_LINES


def test_public_functions_are_annotated(sources):
    bare = [
        f"{path}:{node.lineno} {node.name}"
        for path, text in sources.items()
        for node in functions(text)
        if not node.name.startswith("_") and not is_kernel_file(path, text)
        if node.returns is None
    ]
    assert bare == []


def test_no_loose_ends(sources):
    words = ("TODO", "FIXME", "XXX", "NotImplementedError")
    assert [p for p, text in sources.items() if any(word in text for word in words)] == []


def test_code_lines_leave_the_docstring_out():
    text = 'def f():\n    """One.\n\n    Two.\n    """\n    a = 1\n    return a\n'
    [node] = functions(text)
    assert code_lines(node) == 3
