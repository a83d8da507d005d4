"""``ninfer env``: what a bug report needs about this installation."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated, Any, Final

import typer

from ninfer_core.hookspecs import DEVICES
from ninfer_core.plugins import PluginError, PluginHost
from ninfer_core.version import API, __version__

_VARIABLES: Final = re.compile(r"NINFER_\w+|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS")
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")
_DIST_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def env_command(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show versions, devices, plug-ins and settings, for a bug report."""
    facts = describe(ctx.obj)
    if as_json:
        import json

        typer.echo(json.dumps(facts, indent=2))
        return
    for section, values in facts.items():
        typer.echo(f"{section}:")
        for name, value in values.items():
            typer.echo(f"  {name}: {value}")


def describe(host: PluginHost) -> dict[str, dict[str, Any]]:
    """Sections of facts; a distribution that is required and absent has the value None."""
    return {
        "ninfer": {"version": __version__, "api": f"{API[0]}.{API[1]}"},
        "system": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "executable": sys.executable,
        },
        "plugins": {r.name: f"{r.state} ({r.dist} {r.version})" for r in host.reports},
        "devices": {entry.name: _probe(host, entry.name) for entry in host.entries(DEVICES)},
        "distributions": _versions({r.dist for r in host.reports}),
        "variables": {k: _shown(k, v) for k, v in sorted(os.environ.items()) if _wanted(k)},
    }


def _probe(host: PluginHost, name: str) -> str:
    try:
        if not host.get(DEVICES, name).probe:
            return "ok"
        verdict = host.load(DEVICES, name, "probe")()
    except PluginError as error:
        return str(error)
    return "ok" if verdict.ok else str(verdict.reason)


def _versions(dists: set[str]) -> dict[str, str | None]:
    """The installed version of everything that ``dists`` require, extras included."""
    lines = [line for dist in dists for line in _requires(dist)]
    names = {match[0] for line in lines if (match := _DIST_NAME.match(line))}
    return {name: _version(name) for name in sorted(names - dists)}


def _requires(dist: str) -> list[str]:
    try:
        return requires(dist) or []
    except PackageNotFoundError:
        return []


def _version(dist: str) -> str | None:
    try:
        return version(dist)
    except PackageNotFoundError:
        return None


def _wanted(variable: str) -> bool:
    return _VARIABLES.fullmatch(variable) is not None


def _shown(variable: str, value: str) -> str:
    return "(set)" if _SECRET.search(variable) else value
