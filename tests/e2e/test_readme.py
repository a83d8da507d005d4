"""The commands that the first screen of README.md shows say what it shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NINFER = str(Path(sys.executable).with_name("ninfer"))
CONSOLE = re.search(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
SESSIONS = CONSOLE[1].strip().split("\n\n") if CONSOLE else []


def lasting(lines: list[str]) -> list[str]:
    """The lines, sorted, without what differs from run to run: times, rates, ids of calls."""
    return sorted(re.sub(r" in [\d.]+ s \([\d.]+/s\)|call_\w+", "", line) for line in lines)


def test_there_are_some() -> None:
    assert len(SESSIONS) >= 3


@pytest.mark.parametrize("session", SESSIONS, ids=range(len(SESSIONS)))
def test_a_session_of_the_readme(session: str) -> None:
    typed, *shown = session.splitlines()
    prompt, name, *args = shlex.split(typed)
    assert (prompt, name) == ("$", "ninfer")
    done = subprocess.run(
        [NINFER, *args, "--device", "cpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert lasting([*done.stdout.splitlines(), *done.stderr.splitlines()]) == lasting(shown)
