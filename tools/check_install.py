"""Install NInfer from wheels in a fresh environment and use it as typed.

Usage: python tools/check_install.py [--keep FOLDER] [--torch 'torch>=2.11,<2.14'] [--only-plugins]

Builds every wheel, makes a virtual environment, installs the third-party packages that the wheels
require from the package index, then NInfer with ``pip install --no-index --find-links DIST
ninfer-core ninfer-qwen3_5``, and runs ``ninfer plugins``, ``ninfer run`` and ``ninfer serve``. The
exit code is 0 when every step gave what it should. Takes minutes and about 2 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("ninfer-core", "ninfer-qwen3_5")
QUESTION = "What is 17 + 25?"
ANSWER = "42"


def call(*command: str | Path) -> str:
    """Run a step, show it, and give its stdout. Raises CalledProcessError."""
    print("+", *command, flush=True)
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "NINFER_MODEL")}
    return subprocess.run(
        [*map(str, command)], check=True, stdout=subprocess.PIPE, text=True, env=clean
    ).stdout


def third_party(dist: Path) -> list[str]:
    """What the wheels in ``dist`` require from others, test extras left out."""
    lines: set[str] = set()
    for path in dist.glob("*.whl"):
        with zipfile.ZipFile(path) as wheel:
            [name] = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
            metadata = Parser().parsestr(wheel.read(name).decode())
        lines |= {r for r in metadata.get_all("Requires-Dist", []) if "extra == 'test'" not in r}
    return sorted(_without_extra(line) for line in lines if not line.startswith("ninfer-"))


def _without_extra(line: str) -> str:
    requirement, _, marker = line.partition(";")
    kept = [part for part in marker.split(" and ") if part.strip() and "extra ==" not in part]
    return f"{requirement}; {' and '.join(kept)}" if kept else requirement


def install(folder: Path, torch: str) -> Path:
    """Build, make the environment, install; gives its ``bin`` folder."""
    dist = folder / "dist"
    call(sys.executable, ROOT / "tools" / "build_wheels.py", dist)
    venv.create(folder / "venv", with_pip=True)
    bin_folder = folder / "venv" / "bin"
    pip: list[str | Path] = [bin_folder / "python", "-m", "pip", "install", "--quiet"]
    call(*pip, torch, *third_party(dist))
    call(*pip, "--no-index", "--find-links", dist, *NAMES)
    call(bin_folder / "python", "-m", "pip", "check")
    return bin_folder


def check_plugins(ninfer: Path) -> None:
    """Every installed plug-in is registered."""
    plugins = json.loads(call(ninfer, "plugins", "--json"))["plugins"]
    states = {plugin["name"]: plugin["state"] for plugin in plugins}
    print(states)
    assert set(states.values()) == {"registered"}, states
    assert {"builtin", "qwen3_5", "gateway_cli", "gateway_http", "demo_model"} <= set(states)


def check_run(ninfer: Path) -> None:
    """``ninfer run`` answers."""
    text = call(ninfer, "run", "demo", "--greedy", "--json", "--prompt", QUESTION)
    assert json.loads(text)["text"] == ANSWER, text
    print(text)


def check_serve(ninfer: Path) -> None:
    """``ninfer serve`` answers, and ends when it is told to."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [str(ninfer), "serve", "demo", "--port", str(port)]
    print("+", *command, flush=True)
    with subprocess.Popen(command) as server:
        try:
            reply = _ask(f"http://127.0.0.1:{port}", deadline=time.monotonic() + 120)
        finally:
            server.terminate()
            server.wait(timeout=60)
    assert reply["choices"][0]["message"]["content"] == ANSWER, reply
    print(json.dumps(reply))


def _ask(base: str, deadline: float) -> Any:
    body = {"model": "demo", "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]}
    request = urllib.request.Request(
        f"{base}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)
        except urllib.error.HTTPError:
            raise
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def main() -> None:
    """Run all steps in order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="work here, and leave everything in place")
    parser.add_argument("--torch", default="torch>=2.11,<2.14", help="the torch to install")
    parser.add_argument("--only-plugins", action="store_true", help="stop after `ninfer plugins`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        ninfer = install(folder.resolve(), options.torch) / "ninfer"
        check_plugins(ninfer)
        if not options.only_plugins:
            check_run(ninfer)
            check_serve(ninfer)
    print("ok")


if __name__ == "__main__":
    main()
