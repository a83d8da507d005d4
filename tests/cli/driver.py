"""Run a command over a scripted engine: ``driver.py SCENE FOLDER COMMAND ARGS…``."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

import typer

import ninfer_core
from ninfer_core import builtin, hookimpl
from ninfer_core.hookspecs import ModelSourceEntry
from ninfer_core.plugins import host_of
from ninfer_core.testing.scripted_engine import ScriptedEngine, echo
from ninfer_core.testing.scripted_reply import Reply

SCENE, FOLDER, COMMAND, *ARGS = sys.argv[1:]


class Watched(ScriptedEngine):
    """Says when it is asked; in the scene `stuck` it takes no notice of a cancel, like an engine
    in the middle of a long step."""

    def submit(self, prompt, options=None):
        handle = super().submit(prompt, options)
        if SCENE == "stuck":
            handle.cancel = lambda: None
        sys.stderr.write("asked\n")
        return handle


def scripted(prompt, options):
    """`echo` answers at once, other scenes take a minute."""
    return echo(prompt, options) if SCENE == "echo" else Reply.of("0123456789" * 60, interval=0.1)


class Opening:
    @staticmethod
    def open(source, options, *, factory):
        if SCENE == "loading":
            sys.stderr.write("loading\n")
            time.sleep(60)
        return Watched(scripted)


class Source:
    @hookimpl
    def ninfer_model_sources(self):
        yield ModelSourceEntry(name="demo", resolve="__main__:resolve")


def resolve():
    path = Path(FOLDER) / "demo.ninfer"
    path.touch()
    return path


if __name__ == "__main__":
    ninfer_core.Engine = Opening
    app = getattr(importlib.import_module("ninfer_gateway_cli.commands"), f"{COMMAND}_app")
    typer.main.get_command(app).main(ARGS, obj=host_of({"builtin": builtin, "scripted": Source()}))
