"""The linter, the formatter and the type checker have nothing to say about the tree."""

from __future__ import annotations

import subprocess
import sys

import pytest

PYTHON = "{}.{}".format(*sys.version_info[:2])
CHECKS = {
    "lint": ["ruff", "check", "--no-cache", "--output-format=concise"],
    "format": ["ruff", "format", "--check", "--no-cache"],
    # Stubs of newer packages may need the syntax of the Python that they were installed for.
    "types": ["mypy", "--python-version", PYTHON],
}


def run(root, *command):
    """The exit code and all that a module of the environment prints, run in ``root``."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=root, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_the_tree_is_clean(root, check):
    code, said = run(root, *CHECKS[check])
    assert code == 0, said


@pytest.mark.parametrize(
    ("check", "text", "said"),
    [
        ("lint", "import os\n", "F401"),
        ("format", "x = {  'a':1 }\n", "would be reformatted"),
        ("types", "def f(x):\n    return x\n", "no-untyped-def"),
    ],
)
def test_the_checks_see_what_is_wrong(root, tmp_path, check, text, said):
    (tmp_path / "wrong.py").write_text(text)
    option = "--config-file" if check == "types" else "--config"
    code, output = run(
        tmp_path, *CHECKS[check], f"{option}={root / 'pyproject.toml'}", str(tmp_path / "wrong.py")
    )
    assert code == 1
    assert said in output
