"""Run `ninfer serve` over a scripted engine: ``driver.py ARTIFACT ARGS…``."""

from __future__ import annotations

import sys

import typer

import ninfer_core
from ninfer_core import builtin
from ninfer_core.plugins import host_of
from ninfer_core.testing.scripted_engine import ScriptedEngine
from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http.command import serve_app


def scripted(prompt, options):
    """Six seconds of answer, unless a limit says otherwise."""
    return Reply.of("0123456789" * 6, interval=0.1)


class Opening:
    @staticmethod
    def open(source, options, *, factory):
        return ScriptedEngine(scripted, capacity=options.max_concurrency + options.max_pending)


if __name__ == "__main__":
    ninfer_core.Engine = Opening
    typer.main.get_command(serve_app).main(
        [*sys.argv[1:], "--in-process"], obj=host_of({"builtin": builtin})
    )
