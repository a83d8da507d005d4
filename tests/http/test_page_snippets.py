"""The snippets of the README's section on serving, run as they stand but for the address."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def snippet(name, demo):
    [text] = re.findall(rf"<!-- snippet: {name} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert "http://127.0.0.1:8080" in text
    return text.replace("http://127.0.0.1:8080", demo.url)


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl(demo):
    done = subprocess.run(
        ["sh", "-c", snippet("curl", demo)], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == "42"


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_client(demo, name):
    done = subprocess.run(
        [sys.executable, "-c", snippet(name, demo)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "42"
