"""Commands over a scripted engine, in this process and in one of their own."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import ninfer_core
from ninfer_core import builtin, hookimpl
from ninfer_core.artifact.convert import (
    ComponentSpec,
    ParameterRole,
    ParameterSpec,
    Place,
    SourceSpec,
)
from ninfer_core.hookspecs import ArchitectureEntry, ModelSourceEntry
from ninfer_core.plugins import PluginHost, host_of
from ninfer_core.testing.scripted_engine import Script, ScriptedEngine, echo
from ninfer_spec_mtp import plugin as spec_mtp

DRIVER = Path(__file__).with_name("driver.py")


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout."""
        assert self.out.count("\n") == 1
        return json.loads(self.out)


@pytest.fixture
def artifact(tmp_path) -> Path:
    """What the source `demo` stands for."""
    path = tmp_path / "demo.ninfer"
    path.write_bytes(b"")
    return path


class TinyConverter:
    """The architecture `Tiny`: one matrix `w` of the shape that the configuration names."""

    architecture = "Tiny"

    def describe(self, config):
        shape = tuple(config["shape"])
        source = SourceSpec("w", shape)
        matrix = ParameterSpec("text.w", shape, ParameterRole.MATRIX, (source,), ("x",))
        self.components = (ComponentSpec("text", None, {"architectures": ["Tiny"]}, (matrix,)),)
        return self

    def locate(self, tensor_name):
        return Place("text", tensor_name) if tensor_name == "w" else None


@pytest.fixture
def host(artifact, monkeypatch) -> PluginHost:
    """A host that knows the model source `demo` and how to convert the architecture `Tiny`."""
    module = types.ModuleType("scripted_parts")
    module.resolve = lambda: artifact
    module.converter = TinyConverter()
    monkeypatch.setitem(sys.modules, "scripted_parts", module)

    class Parts:
        @hookimpl
        def ninfer_model_sources(self):
            yield ModelSourceEntry(name="demo", resolve="scripted_parts:resolve")

        @hookimpl
        def ninfer_architectures(self):
            yield ArchitectureEntry(
                name="tiny",
                architectures=("Tiny",),
                build="scripted_parts:none",
                frontend="scripted_parts:none",
                converter="scripted_parts:converter",
            )

    return host_of({"builtin": builtin, "spec_mtp": spec_mtp, "scripted": Parts()})


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A Hugging Face directory of the architecture `Tiny`: bf16 w[4, 8], counting from 1."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["Tiny"], "shape": [4, 8]}))
    values = torch.arange(1, 33, dtype=torch.bfloat16).reshape(4, 8)
    save_file({"w": values}, folder / "model.safetensors")
    return folder


class Command:
    """Runs commands; ``engine`` is the engine that the last one opened, ``opened`` what with."""

    def __init__(self, host: PluginHost) -> None:
        self.script: Script = echo
        self.settings: dict[str, Any] = {}
        self.engine: ScriptedEngine | None = None
        self.opened: list[tuple[Any, Any]] = []
        self._host = host

    def on(self, host: PluginHost) -> Command:
        """The same with other plug-ins."""
        return Command(host)

    def open(self, source: Any, options: Any, *, factory: Any) -> ScriptedEngine:
        self.opened.append((source, options))
        self.engine = ScriptedEngine(self.script, **self.settings)
        return self.engine

    def __call__(self, name: str, *args: str, stdin: str | None = None) -> Ended:
        app = getattr(importlib.import_module("ninfer_gateway_cli.commands"), f"{name}_app")
        done = CliRunner().invoke(app, list(args), input=stdin, obj=self._host)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Ended(done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def ninfer(host, monkeypatch) -> Command:
    """Invoke a command in this process: ``ninfer("run", "--prompt", "hi")``."""
    monkeypatch.delenv("NINFER_MODEL", raising=False)
    command = Command(host)
    monkeypatch.setattr(ninfer_core, "Engine", command, raising=False)
    return command


@pytest.fixture
def spawn(tmp_path) -> Callable[..., subprocess.Popen[str]]:
    """Start a command in a process of its own over a scene of ``driver.py``."""
    started: list[subprocess.Popen[str]] = []

    def start(scene: str, *args: str, **pipes: Any) -> subprocess.Popen[str]:
        outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        pipes = {"stdin": subprocess.DEVNULL, **outputs, **pipes}
        command = [sys.executable, str(DRIVER), scene, str(tmp_path), *args]
        process = subprocess.Popen(command, text=True, **pipes)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
